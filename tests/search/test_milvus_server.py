"""The index on a real Milvus server: results as with faiss, a restart, and a server that is still starting."""

import signal

import numpy as np
import pytest

from bcls.search.build import IndexSettings, build_index
from bcls.search.engine import SearchFilter
from bcls.search.index import open_engine
from bcls.search.service import Service
from tests.search.milvus_server import MilvusServer
from tests.search.test_engines import D, rows, unit

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = MilvusServer(tmp_path_factory.mktemp("milvus"), standalone=True).start(wait=False)
    yield server
    server.stop()


def test_a_server_that_is_still_starting_is_waited_for(server, tmp_path, capsys):
    engine = open_engine("milvus", tmp_path, server.uri, "early", D)
    assert "waiting up to 30 s for Milvus at http" in capsys.readouterr().err
    assert engine.count() == 0
    engine.close()


def test_recall_and_filters_equal_faiss(server, tmp_path):
    there, queries = rows(3000), unit(50, seed=5)
    engines = [open_engine("faiss", tmp_path / "f", "", "", D), open_engine("milvus", tmp_path, server.uri, "many", D)]
    filters = (SearchFilter(), SearchFilter(after=900.0, before=2000.0), SearchFilter(under="d1/", words=("dog",)))
    for engine in engines:
        engine.add(there)
        engine.finish()
    for one in filters:
        exact, found = (engine.search(queries, 10, one) for engine in engines)
        shared = [len(np.intersect1d(a, b)) for a, b in zip(exact.numbers, found.numbers, strict=True)]
        assert np.mean(shared) >= 9.8, one
    for engine in engines:
        engine.close()


def test_index_update_delete_and_search_equal_faiss(server, source, tmp_path, tiny):
    (source / "0/000-red-red.txt").write_text("a red wall")
    engines = {"faiss": {}, "milvus": {"uri": server.uri}}
    for name, more in engines.items():
        build_index(source, IndexSettings(out=str(tmp_path / name), model=str(tiny), engine=name, **more))
    gone = sorted(source.rglob("*.png"))[-1]
    for change in (lambda: None, gone.unlink):
        change()
        answers = []
        for name in engines:
            report = build_index(source, IndexSettings(out=str(tmp_path / name)))
            with Service(tmp_path / name) as service:
                found = [service.search(text, 5) for text in ("red", "a green wall")]
                dated = service.search("red", 5, SearchFilter(under="1/"))
            answers.append((report.photos, report.removed, [[hit.name for hit in one.hits] for one in (*found, dated)]))
        assert answers[0] == answers[1]
    assert gone.name not in str(answers)


def test_reconnects_after_a_restart(server, tmp_path):
    engine = open_engine("milvus", tmp_path, server.uri, "kept", D)
    engine.add(rows(30))
    engine.finish()
    before = engine.search(unit(2, seed=3), 5).numbers.tolist()
    server.stop(signal.SIGTERM)
    server.start(wait=False)
    again = open_engine("milvus", tmp_path, server.uri, "kept", D, read_only=True)
    assert again.search(unit(2, seed=3), 5).numbers.tolist() == before
    assert engine.search(unit(2, seed=3), 5).numbers.tolist() == before  # the old connection, too
    engine.close()
    again.close()
