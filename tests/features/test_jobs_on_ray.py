"""Blocks of work on Ray; all tests share one cluster."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest

from bcls.features.jobs import run_blocks
from tests.features import workers

pytestmark = pytest.mark.slow

BLOCKS = [[f"{'word' * n}{k}" for k in range(n + 1)] for n in range(7)]
START = functools.partial(workers.Draw, 33)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray = pytest.importorskip("ray")  # here, since the import takes long and the default run collects this file
    pytest.importorskip("ray.data")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.parametrize("count", [1, 2])
def test_same_bytes_as_local(count):
    local = {number: rows.tobytes() for number, rows in run_blocks(BLOCKS, START, threads=1)}
    spread = {n: rows.tobytes() for n, rows in run_blocks(BLOCKS, START, engine="ray", workers=count, threads=1)}
    assert spread == local


def test_workers_are_other_processes_with_the_given_threads():
    results = [result for _, result in run_blocks([1, 2], workers.start_threads, engine="ray", threads=3)]
    assert {int(one[0]) for one in results} == {3}
    assert os.getpid() not in {int(one[1]) for one in results}


def test_errors_of_a_worker_are_raised_here():
    with pytest.raises(ValueError, match=r"^`block`: expected words, got 1; pass words$"):
        list(run_blocks([1], workers.start_refuse, engine="ray"))
    with pytest.raises(FileNotFoundError, match="no such model"):
        list(run_blocks([1], workers.start_broken, engine="ray"))


def test_dead_worker_raises():
    with pytest.raises(
        ValueError, match=r"`workers`: expected workers that stay alive, got one that died \(its process ended\)"
    ):
        list(run_blocks([1], workers.start_die, engine="ray"))


def test_own_cluster_is_started_and_stopped_without_output():
    code = (
        "import functools, numpy as np, ray\n"
        "from bcls.features.jobs import run_blocks\n"
        "from tests.features.workers import Draw\n"
        "rows = dict(run_blocks([['a'], ['b', 'c']], functools.partial(Draw, 4), engine='ray', threads=1))\n"
        "print(rows[0].shape, rows[1].shape, ray.is_initialized())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    assert run.stdout == "(1, 4) (2, 4) False\n"
    assert run.stderr == ""


def test_unreachable_address_raises():
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
