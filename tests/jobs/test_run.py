import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from bcls.features.jobs import run_blocks
from tests.jobs import workers

BLOCKS = [["a", "bb", "ccc"], ["dddd"], [], ["e" * 9, "f" * 10]]
START = functools.partial(workers.Draw, 5)


def start_small():
    draw = START()
    return lambda block: draw(block) if block else np.empty((0, 5), np.float16)


def test_local_gives_each_block_in_order():
    results = list(run_blocks(BLOCKS, start_small))
    assert [number for number, _ in results] == [0, 1, 2, 3]
    assert [rows.shape for _, rows in results] == [(3, 5), (1, 5), (0, 5), (2, 5)]
    assert results[1][1].tobytes() == START()(["dddd"]).tobytes()


def test_no_blocks_start_no_worker():
    assert list(run_blocks([], workers.start_broken)) == []


def test_local_is_lazy_and_passes_errors_on():
    stream = run_blocks([["a"], None], START)
    assert next(stream)[0] == 0
    with pytest.raises(TypeError):
        next(stream)
    with pytest.raises(FileNotFoundError, match="no such model"):
        list(run_blocks([1], workers.start_broken))


def test_threads_are_set_for_the_worker_alone():
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
def test_wrong_arguments_are_named_at_the_call(options, named):
    with pytest.raises(ValueError, match=f"^`{named}`: expected"):
        run_blocks([1], START, **options)


def test_import_is_light():
    code = "import sys, bcls.features; print(sorted({'torch', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_ray_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"the engine 'ray' needs ray: pip install \"bcls\[jobs\]\""):
        list(run_blocks([1], START, engine="ray"))


def test_pid_is_this_process():
    assert next(run_blocks([1], workers.start_threads))[1][1] == os.getpid()


class Notes:
    """A worker that begins early; notes what it is told."""

    def __init__(self):
        self.said = []

    def ahead(self, block):
        self.said.append(f"ahead {block}")

    def close(self):
        self.said.append("close")

    def __call__(self, block):
        self.said.append(f"call {block}")
        if block == "bad":
            raise ValueError("bad")
        return np.zeros(1)


@pytest.mark.parametrize("ending", ["whole", "left", "raised"])
def test_a_worker_hears_of_the_next_block_and_of_the_end(ending):
    notes = Notes()
    stream = run_blocks(["a", "bad" if ending == "raised" else "b"], lambda: notes)
    if ending == "whole":
        assert len(list(stream)) == 2
    elif ending == "left":
        next(stream)
        stream.close()
    else:
        with pytest.raises(ValueError, match="bad"):
            list(stream)
    assert notes.said[:3] == ["ahead a", "ahead b" if ending != "raised" else "ahead bad", "call a"]
    assert notes.said[-1] == "close"
    assert notes.said.count("close") == 1
