"""The faiss engine: graph, derived files and compaction."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
import torch

from bcls.search.engine import SearchFilter

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')

from bcls.search.faiss_engine import FaissEngine
from tests.search.test_engines import D, rows, slow_search, unit


def names(place):
    return sorted(path.name for path in place.iterdir())


@pytest.fixture
def engine(tmp_path):
    engine = FaissEngine(tmp_path / "f", D, exact=100)
    yield engine
    engine.close()


def recall(engine, there, where=None, k=10):
    queries = unit(20, seed=4)
    found = engine.search(queries, k, where).numbers.tolist()
    expected = slow_search(there, queries, k, where or SearchFilter())
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, expected, strict=True)])


def test_graph_above_the_limit(engine, tmp_path):
    there = rows(600)
    engine.add(there[:400])
    assert recall(engine, there[:400]) == 1  # without a file: all are compared
    engine.finish()
    assert hasattr(engine._view().main, "hnsw")
    assert recall(engine, there[:400]) >= 0.95
    engine.add(there[400:])
    assert recall(engine, there) >= 0.95  # the graph, and the rest beside it
    engine.finish()
    assert engine._view().main.ntotal == 600
    assert names(tmp_path / "f") == ["rows.sqlite", "vectors-0-600.faiss"]
    assert recall(engine, there) >= 0.95


@pytest.mark.parametrize("deleted", [1, 64, 65, 80])
@pytest.mark.parametrize("exact", [100, 1000])
def test_deleted_rows_are_left_out(tmp_path, monkeypatch, deleted, exact):
    """A few are found and dropped, more are left out by a selector."""
    import faiss

    there = rows(600)
    selectors = []
    real = faiss.IDSelectorBitmap
    monkeypatch.setattr(faiss, "IDSelectorBitmap", lambda bits: selectors.append(bits) or real(bits))
    with closing(FaissEngine(tmp_path / "f", D, exact=exact)) as engine:
        engine.add(there)
        engine.finish()
        queries = unit(20, seed=4)
        # The nearest rows of the first query among them.
        gone = set(slow_search(there, queries, deleted, SearchFilter())[0])
        engine.delete(sorted(gone))
        left = [row for row in there if row.number not in gone]
        assert recall(engine, left) >= (1 if exact == 1000 else 0.95)
        assert gone.isdisjoint(engine.search(queries, 600).numbers.ravel().tolist())
        assert bool(selectors) == (deleted > 64)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("queries", [1, 20])
def test_a_search_keeps_the_number_of_threads(engine, threads, queries):
    """Of torch as well, which may share its OpenMP library with faiss."""
    import faiss

    engine.add(rows(120))
    engine.finish()
    before = faiss.omp_get_max_threads()
    try:
        torch.set_num_threads(threads)
        faiss.omp_set_num_threads(threads)
        engine.search(unit(queries), 5)
        assert (faiss.omp_get_max_threads(), torch.get_num_threads()) == (threads, threads)
    finally:
        torch.set_num_threads(before)
        faiss.omp_set_num_threads(before)


def test_narrow_filters_are_exact(engine):
    there = rows(600)
    engine.add(there)
    engine.finish()
    assert recall(engine, there, SearchFilter(after=200.0, before=260.0)) == 1
    assert recall(engine, there, SearchFilter(after=100.0)) >= 0.95
    found = engine.search(unit(3), 20, SearchFilter(after=100.0)).numbers
    assert found.min() >= 100


def test_deleted_rows_are_never_returned(engine):
    there = rows(600)
    engine.add(there)
    engine.finish()
    engine.delete(range(1, 60))
    assert engine.search(unit(5), 50).numbers.min() >= 60
    engine.finish()
    assert engine._view().epoch == 0  # few are deleted: the graph is kept
    assert engine.search(unit(5), 50).numbers.min() >= 60
    engine.delete(range(60, 301))
    engine.finish()
    assert engine._view().epoch == 1  # many are deleted: compacted
    assert len(engine._view().written) == 300
    assert recall(engine, there[300:]) >= 0.95
    np.testing.assert_array_equal(engine.vectors([301, 600]), [there[300].vector, there[599].vector])


def test_everything_can_be_deleted(engine):
    engine.add(rows(10))
    engine.finish()
    engine.delete(range(1, 11))
    engine.finish()
    assert engine.count() == 0
    assert engine.search(unit(1), 2).numbers.tolist() == [[-1, -1]]
    engine.add(rows(2))
    assert engine.numbers().tolist() == [1, 2]


def test_missing_or_damaged_faiss_files_lose_no_data(engine, tmp_path):
    there = rows(50)
    engine.add(there)
    engine.finish()
    engine.close()
    file = tmp_path / "f" / "vectors-0-50.faiss"
    whole = file.read_bytes()
    for content in (whole[:100], b"", None):
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        again = FaissEngine(tmp_path / "f", D, read_only=True)
        assert recall(again, there) == 1
        again.close()


def test_a_faiss_file_that_ends_inside_a_segment(engine, tmp_path):
    there = rows(50)
    engine.add(there)
    shorter = FaissEngine(tmp_path / "g", D, exact=100)
    shorter.add(there[:30])
    shorter.finish()
    shorter.close()
    (tmp_path / "g" / "vectors-0-30.faiss").rename(tmp_path / "f" / "vectors-0-30.faiss")
    again = FaissEngine(tmp_path / "f", D, read_only=True)
    assert recall(again, there) == 1
    assert np.array_equal(again.vectors([row.number for row in there]), np.stack([row.vector for row in there]))
    again.close()


def test_a_missing_epoch_names_the_file(engine, tmp_path):
    engine.add(rows(3))
    engine.close()
    path = tmp_path / "f" / "rows.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM epoch")
    again = FaissEngine(tmp_path / "f", D, read_only=True)
    with pytest.raises(OSError, match="its epoch is missing") as raised:
        again.search(unit(1), 2)
    assert raised.value.filename == str(path)
    again.close()


def test_readers_notice_compaction(engine, tmp_path):
    """A faiss file of an older epoch is ignored."""
    there = rows(50)
    engine.add(there)
    engine.finish()
    engine.delete(range(1, 31))
    file = tmp_path / "f" / "vectors-0-50.faiss"
    old = file.read_bytes()
    engine.finish()
    file.write_bytes(old)
    reader = FaissEngine(tmp_path / "f", D, read_only=True)
    assert recall(reader, there[30:], k=5) == 1
    reader.close()


def test_non_finite_vectors_are_rejected(engine):
    bad = rows(1)[0]._replace(vector=np.full(D, np.nan, np.float32))
    with pytest.raises(ValueError, match="`rows`: expected finite vectors of 16 numbers"):
        engine.add([bad])
    assert engine.count() == 0


def test_a_missing_or_foreign_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="build the index again"):
        FaissEngine(tmp_path / "none", D, read_only=True)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "rows.sqlite").write_bytes(b"something else entirely, and long enough to look like it" * 20)
    with pytest.raises(OSError, match="not a database"):
        FaissEngine(tmp_path / "f", D)


def test_full_disk_raises_and_changes_nothing(engine):
    engine.add(rows(3))
    pages = engine._database._connection.execute("PRAGMA page_count").fetchone()[0]
    engine._database._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match="full") as raised:
        engine.add(rows(3000))
    assert raised.value.errno == 28
    assert engine.count() == 3
    assert len(engine.vectors([1, 2, 3])) == 3


def test_faiss_file_replaced_while_it_is_opened(engine, tmp_path, monkeypatch):
    from bcls.search import faiss_engine as _faiss_files

    there = rows(20)
    engine.add(there)
    engine.finish()
    reader = FaissEngine(tmp_path / "f", D, read_only=True)
    real = _faiss_files._is_complete

    def late(path):
        path.unlink()
        return real(path)

    monkeypatch.setattr(_faiss_files, "_is_complete", late)
    assert recall(reader, there) == 1
    reader.close()


def test_compaction_while_rows_are_read(engine, tmp_path, monkeypatch):
    """A reader sees one snapshot: the writer waits for it, or finishes before."""
    there = rows(40)
    engine.add(there)
    engine.finish()
    engine.add(rows(45)[40:])
    engine.delete(range(1, 21))
    reader = FaissEngine(tmp_path / "f", D, read_only=True)
    engine._database._connection.execute("PRAGMA busy_timeout = 100")
    real = FaissEngine._state

    def compacted_after(self):
        found = real(self)
        if self is reader:
            with pytest.raises(OSError, match="locked"):
                engine._compact()
        return found

    monkeypatch.setattr(FaissEngine, "_state", compacted_after)
    assert recall(reader, rows(45)[20:], k=5) == 1
    reader.close()
    monkeypatch.undo()
    engine.finish()
    assert recall(engine, rows(45)[20:], k=5) == 1


def test_vectors_are_read_from_one_snapshot(engine, tmp_path):
    engine.add(rows(20))
    reader = FaissEngine(tmp_path / "f", D, read_only=True)
    writer = engine._database._connection
    writer.execute("PRAGMA busy_timeout = 50")
    first = []

    def compacting(statement):
        if statement.startswith("SELECT vectors") and not first:
            first.append(statement)
            with pytest.raises(OSError, match="locked"):
                engine._compact()

    reader._database._connection.set_trace_callback(compacting)
    np.testing.assert_array_equal(reader.vectors(range(1, 21)), [row.vector for row in rows(20)])
    assert first
    reader.close()
