"""A vector server that is killed."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bcls.search.engine import VectorRow
from bcls.search.index import open_engine
from tests.faults.records import tried


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
