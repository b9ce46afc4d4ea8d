"""The engine ``ray`` gives what the local one gives; one Ray serves all tests here."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest

from bcls.features.jobs import run_blocks
from tests.jobs import workers

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")
pytestmark = pytest.mark.slow

BLOCKS = [[f"{'word' * n}{k}" for k in range(n + 1)] for n in range(7)]
START = functools.partial(workers.Draw, 33)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.parametrize("count", [1, 2])
def test_same_bytes_as_local(count):
    local = {number: rows.tobytes() for number, rows in run_blocks(BLOCKS, START, threads=1)}
    spread = {n: rows.tobytes() for n, rows in run_blocks(BLOCKS, START, engine="ray", workers=count, threads=1)}
    assert spread == local


def test_workers_are_other_processes_with_the_threads_asked_for():
    results = [result for _, result in run_blocks([1, 2], workers.start_threads, engine="ray", threads=3)]
    assert {int(one[0]) for one in results} == {3}
    assert os.getpid() not in {int(one[1]) for one in results}


def test_what_a_worker_raises_is_raised_here():
    with pytest.raises(ValueError, match=r"^`block`: expected words, got 1; pass words$"):
        list(run_blocks([1], workers.start_refuse, engine="ray"))
    with pytest.raises(FileNotFoundError, match="no such model"):
        list(run_blocks([1], workers.start_broken, engine="ray"))


def test_a_worker_that_dies_is_told():
    with pytest.raises(
        ValueError, match=r"`workers`: expected that they live, got one that died \(its process ended\)"
    ):
        list(run_blocks([1], workers.start_die, engine="ray"))


def test_starts_and_stops_its_own_ray_quietly():
    code = (
        "import functools, numpy as np, ray\n"
        "from bcls.features.jobs import run_blocks\n"
        "from tests.jobs.workers import Draw\n"
        "rows = dict(run_blocks([['a'], ['b', 'c']], functools.partial(Draw, 4), engine='ray', threads=1))\n"
        "print(rows[0].shape, rows[1].shape, ray.is_initialized())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    assert run.stdout == "(1, 4) (2, 4) False\n"
    assert run.stderr == ""


def test_no_cluster_at_the_address():
    code = (
        "from bcls.features.jobs import run_blocks\n"
        "try:\n"
        "    list(run_blocks([1], print, engine='ray', address='127.0.0.1:1'))\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    assert run.stdout.startswith("`address`: expected a running Ray cluster, got '127.0.0.1:1' (")


def test_wide_results_keep_their_type():
    start = functools.partial(functools.partial, np.full, fill_value=1.5, dtype=np.float16)
    ((_, rows),) = run_blocks([(3, 2, 4)], start, engine="ray")
    assert rows.dtype == np.float16
    assert rows.shape == (3, 2, 4)
