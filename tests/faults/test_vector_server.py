"""A vector server that is killed."""

import time

import numpy as np
import pytest

from bcls.search import milvus_engine
from bcls.search.engine import VectorRow
from bcls.search.index import open_engine
from tests.faults.records import tried
from tests.search.milvus_server import MilvusServer


@pytest.fixture
def server(tmp_path):
    """A Milvus server."""
    server = MilvusServer(tmp_path / "milvus", standalone=False).start()
    yield server
    server.stop()


def test_killed_vector_server(tmp_path, server, monkeypatch):
    monkeypatch.setattr(milvus_engine, "WAIT_SECONDS", 0)
    vectors = np.eye(4, dtype=np.float32)
    engine = open_engine("milvus", tmp_path, server.uri, "lost", 4)
    engine.add([VectorRow(1, vectors[0], 1.0, "a.jpg", ("dog",))])
    assert engine.count() == 1
    server.stop()
    asked = {
        "search": lambda: engine.search(vectors[:1], 1),
        "add": lambda: engine.add([VectorRow(2, vectors[1], 1.0, "b.jpg", ())]),
        "delete": lambda: engine.delete([1]),
        "count": engine.count,
        "open": lambda: open_engine("milvus", tmp_path, server.uri, "lost", 4, read_only=True),
    }
    for ask in asked.values():
        started = time.monotonic()
        with pytest.raises(ValueError, match=r"`uri`: expected Milvus at http.*check that the server is up"):
            ask()
        assert time.monotonic() - started < 60
    tried("lost network", "vector server", len(asked), "one-line error with the address of the server; nothing hangs")
