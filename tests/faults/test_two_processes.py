"""Two processes on one folder: the second gets an error or waits; the lock of a killed process is free."""

import os
import signal
import threading
from contextlib import contextmanager
from functools import partial

import pytest

from bcls._core.locks import lock_folder
from tests.faults.faulty import child
from tests.faults.records import tried

LOCKS = {"run, dataset, features": lock_folder, "index": partial(lock_folder, name="lock")}


@contextmanager
def held_elsewhere(hold, folder):
    def work(ready):
        with hold(folder):
            ready()
            threading.Event().wait(60)

    with child(work) as pid:
        yield pid


@pytest.mark.parametrize("name", LOCKS)
def test_second_process_gets_an_error_with_the_process_id(tmp_path, name):
    hold = LOCKS[name]
    with held_elsewhere(hold, tmp_path) as pid:
        for _ in range(3):
            with pytest.raises(ValueError, match=rf": expected .*process {pid}\b"), hold(tmp_path):
                pass
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with hold(tmp_path):
            pass
    tried(
        "two processes",
        name,
        4,
        "the second gets an error with the process id of the first; the lock of a killed process is free",
    )


def test_second_process_waits_for_embeddings(tmp_path):
    done = threading.Event()

    def second():
        with lock_folder(tmp_path, wait=True):
            done.set()

    with held_elsewhere(partial(lock_folder, wait=True), tmp_path) as pid:
        waiting = threading.Thread(target=second)
        waiting.start()
        assert not done.wait(0.3)
        os.kill(pid, signal.SIGKILL)
        assert done.wait(10)
        waiting.join()
    tried("two processes", "embeddings of captions", 1, "the second waits, and continues when the first is killed")
