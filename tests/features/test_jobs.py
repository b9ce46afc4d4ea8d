"""Blocks of work in this process."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from bcls.features.jobs import _fail_to_connect, run_blocks
from tests.features import workers

BLOCKS = [["a", "bb", "ccc"], ["dddd"], [], ["e" * 9, "f" * 10]]
START = functools.partial(workers.Draw, 5)


def start_small():
    draw = START()
    return lambda block: draw(block) if block else np.empty((0, 5), np.float16)


def test_local_yields_blocks_in_order():
    results = list(run_blocks(BLOCKS, start_small))
    assert [number for number, _ in results] == [0, 1, 2, 3]
    assert [rows.shape for _, rows in results] == [(3, 5), (1, 5), (0, 5), (2, 5)]
    assert results[1][1].tobytes() == START()(["dddd"]).tobytes()


def test_without_blocks_no_worker_is_started():
    assert list(run_blocks([], workers.start_broken)) == []


def test_local_is_lazy_and_raises_errors_of_the_worker():
    stream = run_blocks([["a"], None], START)
    assert next(stream)[0] == 0
    with pytest.raises(TypeError):
        next(stream)
    with pytest.raises(FileNotFoundError, match="no such model"):
        list(run_blocks([1], workers.start_broken))


def test_threads_are_set_only_while_the_worker_runs():
    before = torch.get_num_threads()
    seen = []
    for _, result in run_blocks([1, 2], workers.start_threads, threads=before + 1):
        seen.append(int(result[0]))
        assert torch.get_num_threads() == before
    assert seen == [before + 1] * 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"engine": "spark"}, "engine"),
        ({"workers": 0}, "workers"),
        ({"workers": 2}, "workers"),
        ({"address": "auto"}, "address"),
        ({"threads": 0}, "threads"),
        ({"gpus": -1}, "gpus"),
    ],
)
def test_invalid_arguments_raise_at_the_call(options, named):
    with pytest.raises(ValueError, match=f"^`{named}`: expected"):
        run_blocks([1], START, **options)


def test_importing_features_is_light():
    code = "import sys, bcls.features; print(sorted({'torch', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_missing_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"the engine 'ray' needs ray: pip install \"bcls\[jobs\]\""):
        list(run_blocks([1], START, engine="ray"))


def test_local_runs_in_this_process():
    assert next(run_blocks([1], workers.start_threads))[1][1] == os.getpid()


class RecordingPrefetcher:
    """A worker that prefetches; records its calls."""

    def __init__(self):
        self.calls = []

    def prefetch(self, block):
        self.calls.append(f"prefetch {block}")

    def close(self):
        self.calls.append("close")

    def __call__(self, block):
        self.calls.append(f"call {block}")
        if block == "bad":
            raise ValueError("bad")
        return np.zeros(1)


@pytest.mark.parametrize("ending", ["whole", "left", "raised"])
def test_prefetcher_gets_the_next_block_and_is_closed(ending):
    worker = RecordingPrefetcher()
    stream = run_blocks(["a", "bad" if ending == "raised" else "b"], lambda: worker)
    if ending == "whole":
        assert len(list(stream)) == 2
    elif ending == "left":
        next(stream)
        stream.close()
    else:
        with pytest.raises(ValueError, match="bad"):
            list(stream)
    assert worker.calls[:3] == ["prefetch a", "prefetch b" if ending != "raised" else "prefetch bad", "call a"]
    assert worker.calls[-1] == "close"
    assert worker.calls.count("close") == 1


def test_cluster_that_requires_a_token():
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = RuntimeError("InvalidAuthToken: Authentication token is missing or incorrect.")
    with pytest.raises(ValueError, match=r"got '10.0.0.1:6379', which requires a token; set RAY_AUTH_MODE=token"):
        _fail_to_connect("10.0.0.1:6379", error)


def test_other_connection_errors_are_quoted():
    with pytest.raises(ValueError, match=r"`address`: expected a running Ray cluster, got 'auto' \(no cluster found\)"):
        _fail_to_connect("auto", ConnectionError("no cluster\nfound"))
