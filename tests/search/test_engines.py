"""All engines pass the same tests."""

import numpy as np
import pytest

from bcls.search import milvus_engine
from bcls.search.engine import SearchFilter, VectorRow
from bcls.search.index import open_engine
from tests.search.milvus_server import MilvusServer

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')
D = 16


def unit(count, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, D)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rows(count, seed=0):
    # Names with what is special in SQL and in Milvus' language.
    return [
        VectorRow(n, vector, float(n), f'd{n % 3}/it\'s "{n}"_%\\é.jpg', ("dog", f"b{n}") if n % 2 else ())
        for n, vector in enumerate(unit(count, seed), start=1)
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Address of a Milvus server on this machine."""
    server = MilvusServer(tmp_path_factory.mktemp("milvus"), standalone=False).start()
    yield server.uri
    server.stop()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory):
    """Address of a Milvus server as it runs in a cluster."""
    server = MilvusServer(tmp_path_factory.mktemp("standalone"), standalone=True).start()
    yield server.uri
    server.stop()


@pytest.fixture(
    params=["faiss", "milvus file", "milvus server", pytest.param("milvus standalone", marks=pytest.mark.slow)]
)
def make(request, tmp_path):
    """Opens an empty engine, or reopens it."""
    name = request.param
    opened = []
    uri = ""
    if name != "faiss":
        pytest.importorskip("milvus_lite", reason='needs pip install "bcls[milvus]"')
        uri = str(tmp_path / "m.db") if name == "milvus file" else request.getfixturevalue(name.split()[1])
    collection = f"c{abs(hash(str(tmp_path)))}"

    def call(**options):
        engine = open_engine(name.split()[0], tmp_path / "f", uri, collection, options.pop("dimension", D), **options)
        opened.append(engine)
        return engine

    yield call
    for engine in opened:
        engine.close()


def slow_search(there, queries, k, where):
    """A loop over all rows."""
    results = []
    for query in queries:
        found = []
        for row in there:
            if where.after is not None and row.date < where.after:
                continue
            if where.before is not None and row.date >= where.before:
                continue
            if row.name.startswith(where.under) and set(where.words) <= set(row.words):
                found.append((-float(query @ row.vector), row.number))
        results.append([number for _, number in sorted(found)[:k]])
    return results


WHERES = [
    SearchFilter(),
    SearchFilter(after=20.0, before=40.0),
    SearchFilter(under="d1/"),
    SearchFilter(under='d1/it\'s "4"_%\\'),
    SearchFilter(under="d1/%"),
    SearchFilter(words=("dog",)),
    SearchFilter(words=("b7", "dog")),
    SearchFilter(after=30.0, under="d2/", words=("dog",)),
    SearchFilter(words=("nowhere",)),
]


def test_search_matches_a_loop_over_all_rows(make):
    engine = make()
    there = rows(60)
    engine.add(there)
    queries = unit(3, seed=5)
    for where in WHERES:
        found = engine.search(queries, 7, where)
        expected = slow_search(there, queries, 7, where)
        assert [[one for one in row if one >= 0] for row in found.numbers.tolist()] == expected, where
        assert found.scores.shape == (3, 7)
        assert ((found.numbers < 0) == np.isneginf(found.scores)).all()
    by_number = {row.number: row.vector for row in there}
    found = engine.search(queries, 7)
    exact = [[query @ by_number[n] for n in row] for query, row in zip(queries, found.numbers, strict=True)]
    np.testing.assert_allclose(found.scores, exact, atol=1e-5)


def test_add_replace_delete_and_open_again(make):
    engine = make()
    assert engine.count() == 0
    assert engine.search(unit(1), 3).numbers.tolist() == [[-1, -1, -1]]
    there = {row.number: row for row in rows(40)}
    engine.add(list(there.values()))
    engine.finish()
    changed = [row._replace(name="new/x.jpg", words=("cat",)) for row in rows(10, seed=9)]
    engine.add(changed)
    engine.delete([15, 16, 999])
    there = {n: row for n, row in there.items() if n not in {15, 16}} | {row.number: row for row in changed}
    for again in (False, True):
        if again:
            engine.finish()
            engine.close()
            engine = make(read_only=True)
        assert engine.count() == 38
        assert engine.numbers().tolist() == sorted(there)
        for where in (
            SearchFilter(),
            SearchFilter(under="new/"),
            SearchFilter(words=("dog",)),
            SearchFilter(words=("cat",)),
        ):
            found = engine.search(unit(2, seed=3), 50, where).numbers
            expected = slow_search(there.values(), unit(2, seed=3), 50, where)
            assert [[one for one in row if one >= 0] for row in found.tolist()] == expected
        wanted = [40, 3, 20]
        np.testing.assert_allclose(engine.vectors(wanted), [there[n].vector for n in wanted], atol=1e-6)
        assert engine.vectors([]).shape == (0, D)
        with pytest.raises(ValueError, match=r"`numbers`: expected rows of the index, got 15"):
            engine.vectors([3, 15])


def test_ties_are_sorted_by_number(make):
    engine = make()
    vector = unit(1)[0]
    engine.add([VectorRow(n, vector, 0.0, f"{n}", ()) for n in (5, 3, 9)])
    engine.finish()
    assert engine.search(vector[None], 3).numbers.tolist() == [[3, 5, 9]]


def test_bad_queries(make):
    engine = make()
    engine.add(rows(3))
    with pytest.raises(ValueError, match=r"`queries`: expected shape \(Q, 16\), got \(1, 4\)"):
        engine.search(np.zeros((1, 4), np.float32), 1)
    with pytest.raises(ValueError, match="`queries`: expected finite numbers"):
        engine.search(np.full((1, D), np.nan, np.float32), 1)
    with pytest.raises(ValueError, match="`k`: expected a positive integer, got 0"):
        engine.search(unit(1), 0)


def test_unknown_engine(tmp_path):
    with pytest.raises(
        ValueError, match="`engine`: expected one of 'faiss', 'milvus', got 'fais'; did you mean 'faiss'"
    ):
        open_engine("fais", tmp_path, "", "c", D)


def test_milvus_error_messages(tmp_path, server, monkeypatch):
    monkeypatch.setattr(milvus_engine, "WAIT_SECONDS", 0)
    with pytest.raises(ValueError, match="pass --uri"):
        open_engine("milvus", tmp_path, "", "c", D)
    with pytest.raises(ValueError, match="`uri`: expected the file that the index was built with"):
        open_engine("milvus", tmp_path, str(tmp_path / "none.db"), "c", D, read_only=True)
    with pytest.raises(ValueError, match="`uri`: expected the collection nothing, got none"):
        open_engine("milvus", tmp_path, server, "nothing", D, read_only=True)
    engine = open_engine("milvus", tmp_path, server, "sized", D)
    with pytest.raises(ValueError, match="`uri`: expected vectors of 8 numbers in sized, got 16"):
        open_engine("milvus", tmp_path, server, "sized", 8)
    with pytest.raises(ValueError, match="`k`: expected at most 16384"):
        engine.search(unit(1), 20_000)
    engine.close()
    with pytest.raises(ValueError, match=r"`uri`: expected Milvus at http://127.0.0.1:1, got an error"):
        open_engine("milvus", tmp_path, "http://127.0.0.1:1", "c", D)
