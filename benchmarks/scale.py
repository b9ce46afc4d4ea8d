"""Cost of a vector engine by the number of vectors: ``python -m benchmarks.scale --engine faiss``.

The vectors are seeded mixtures of 8,000 unit vectors with a decaying spectrum, plus noise, as in ``benchmarks.index``.
For each size a new engine is filled, finished, opened again for reading and searched one query at a time. ``--engine
milvus --uri http://127.0.0.1:19530`` measures a server; its memory is that of the processes named ``milvus``.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from bcls.search import open_engine
from bcls.search.engine import VectorRow
from benchmarks.index import mixtures
from benchmarks.tables import show

SOURCES, QUERIES, K = 8000, 200, 10


def source_vectors(width):
    """Unit vectors whose principal components decay as those of image embeddings do."""
    scale = np.arange(1, width + 1, dtype=np.float32) ** -0.5
    vectors = np.random.default_rng(7).standard_normal((SOURCES, width), dtype=np.float32) * scale
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def exact_neighbors(source, count, queries):
    """Numbers of the nearest vectors of each query, by comparison with all."""
    best, numbers = np.full((len(queries), K), -2.0, np.float32), np.full((len(queries), K), -1)
    first = 1
    for block in mixtures(source, count, seed=0):
        scores = np.hstack((best, queries @ block.T))
        found = np.hstack((numbers, np.tile(np.arange(first, first + len(block)), (len(queries), 1))))
        top = np.argpartition(-scores, K, axis=1)[:, :K]
        best, numbers = np.take_along_axis(scores, top, 1), np.take_along_axis(found, top, 1)
        first += len(block)
    return numbers


def resident(name=None):
    """Resident bytes of this process, or of all processes whose name has ``name`` in it."""
    status = Path("/proc/self/status").read_text() if name is None else ""
    for path in Path("/proc").glob("[0-9]*/status") if name else ():
        try:
            text = path.read_text()
        except OSError:  # ended meanwhile
            continue
        status += text if name in text.splitlines()[0] else ""
    return sum(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def disk(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(arguments, count, place):
    """One row: the costs of ``count`` vectors."""
    source = source_vectors(arguments.width)
    settings = {"uri": arguments.uri, "collection": f"scale_{count}", "dimension": arguments.width}
    engine = open_engine(arguments.engine, place / "engine", **settings)
    name = "milvus" if arguments.engine == "milvus" else None
    before = resident(name)
    number, started = itertools.count(1), time.perf_counter()
    for block in mixtures(source, count, seed=0):
        engine.add([VectorRow(next(number), vector, 0.0, "a.jpg", ()) for vector in block])
    written = time.perf_counter()
    engine.finish()
    finished = time.perf_counter()
    engine.close()
    queries = np.concatenate(list(mixtures(source, QUERIES, seed=1)))
    expected = exact_neighbors(source, count, queries)
    before = before if name else resident()
    engine = open_engine(arguments.engine, place / "engine", **settings, read_only=True)
    engine.search(queries[:5], K)
    if name:
        wait_for_index(engine)
    times, hits = [], 0
    for query, right in zip(queries, expected, strict=True):
        begin = time.perf_counter()
        found = engine.search(query[None], K).numbers[0]
        times.append(1e3 * (time.perf_counter() - begin))
        hits += len(set(found.tolist()) & set(right.tolist()))
    memory = resident(name) - before
    engine.close()
    folder = Path(arguments.folder) if arguments.folder else place
    return {
        "engine": arguments.engine,
        "vectors": count,
        "width": arguments.width,
        "write, s": written - started,
        "finish, s": finished - written,
        "bytes on disk per vector": disk(folder) / count,
        "resident bytes per vector": memory / count,
        "p50 ms": statistics.median(times),
        "p99 ms": float(np.percentile(times, 99)),
        "recall@10": hits / expected.size,
    }


def wait_for_index(engine):
    """Wait until a server has indexed all vectors; a search before that compares them one by one."""
    for _ in range(3600):
        state = engine._client.describe_index(engine._collection, "vector")
        if state.get("pending_index_rows", 0) == 0:
            return
        time.sleep(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="faiss", choices=("faiss", "milvus"))
    parser.add_argument("--uri", default="", help="address of a Milvus server")
    parser.add_argument("--folder", help="data folder of the server, for the bytes on disk")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    rows = []
    for count in arguments.sizes:
        with tempfile.TemporaryDirectory() as place:
            rows.append(measure(arguments, count, Path(place)))
    show(f"{arguments.engine}: cost by the number of vectors", rows, arguments.json)


if __name__ == "__main__":
    main()
