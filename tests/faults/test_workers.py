"""Killed workers: drawing processes, and the vector server."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bcls.data.synthetic import make_scenes
from bcls.data.synthetic.dataset import render_all
from bcls.search.engine import VectorRow
from bcls.search.index import open_engine
from tests.faults.records import tried


def kill_a_child(stop):
    """Kill the first process that the pool starts."""
    while not stop.is_set():
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                number, _, rest = path.read_text().partition(" (")
                parent = int(rest.rpartition(") ")[2].split()[1])
                words = (path.parent / "cmdline").read_bytes()
            except (OSError, IndexError):
                continue
            if parent == os.getpid() and b"spawn_main" in words:
                os.kill(int(number), signal.SIGKILL)
                return
        time.sleep(0.01)


def test_killed_drawing_process():
    scenes = make_scenes(130, seed=0).scenes
    stop = threading.Event()
    killer = threading.Thread(target=kill_a_child, args=(stop,))
    killer.start()
    try:
        with pytest.raises(OSError, match="a drawing process was killed"):
            render_all(scenes, size=32, workers=2)
    finally:
        stop.set()
        killer.join()
    tried("killed workers", "drawing of scenes", 1, "one-line error; nothing was written")


def test_drawing_process_killed_while_it_receives_work(monkeypatch):
    scenes = make_scenes(130, seed=0).scenes

    def given(error):
        def submit(*_, **__):
            raise error

        monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)

    given(OSError("handle is closed"))
    with pytest.raises(OSError, match="a drawing process was killed"):
        render_all(scenes, size=32, workers=2)
    given(OSError(errno.EAGAIN, "no more processes"))
    with pytest.raises(OSError, match="no more processes"):
        render_all(scenes, size=32, workers=2)


@pytest.fixture
def server(tmp_path):
    """Address and process of a Milvus server."""
    pytest.importorskip("milvus_lite", reason='needs pip install "bcls[milvus]"')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    program = Path(sys.executable).parent / "milvus-lite"
    words = [
        str(program),
        "server",
        "--data-dir",
        str(tmp_path / "milvus"),
        "--host",
        "127.0.0.1",
        "--port",
        str(number),
    ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", number)) == 0:
                break
        time.sleep(0.1)
    yield words, f"http://127.0.0.1:{number}", process
    process.kill()
    process.wait()


def test_killed_vector_server(tmp_path, server):
    _, address, process = server
    vectors = np.eye(4, dtype=np.float32)
    engine = open_engine("milvus", tmp_path, address, "lost", 4)
    engine.add([VectorRow(1, vectors[0], 1.0, "a.jpg", ("dog",))])
    assert engine.count() == 1
    process.kill()
    process.wait()
    asked = {
        "search": lambda: engine.search(vectors[:1], 1),
        "add": lambda: engine.add([VectorRow(2, vectors[1], 1.0, "b.jpg", ())]),
        "delete": lambda: engine.delete([1]),
        "count": engine.count,
        "open": lambda: open_engine("milvus", tmp_path, address, "lost", 4, read_only=True),
    }
    for ask in asked.values():
        started = time.monotonic()
        with pytest.raises(ValueError, match=r"`uri`: expected Milvus at http.*check that the server is up"):
            ask()
        assert time.monotonic() - started < 60
    tried("lost network", "vector server", len(asked), "one-line error with the address of the server; nothing hangs")
