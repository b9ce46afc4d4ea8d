"""Cost of a vector engine by the number of vectors: ``python -m benchmarks.scale --engine faiss``.

The vectors are seeded mixtures of 8,000 unit vectors with a decaying spectrum, plus noise, as in ``benchmarks.index``.
For each size a new engine is filled, finished, opened again for reading and searched one query at a time. ``--engine
milvus --uri http://127.0.0.1:19530`` measures a server; memory and CPU time include the processes named ``milvus``.
All times are CPU times, which depend less on what else the machine does.
"""

import argparse
import itertools
import os
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


def processes(name):
    """Folders in /proc of this process and, with a name, of all processes whose name has it."""
    yield Path("/proc/self")
    for path in Path("/proc").glob("[0-9]*") if name else ():
        try:
            if name in (path / "comm").read_text():
                yield path
        except OSError:  # ended meanwhile
            continue


def resident(name):
    """Resident bytes."""
    lines = [line for path in processes(name) for line in (path / "status").read_text().splitlines()]
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def cpu(name):
    """Seconds of CPU time."""
    fields = [(path / "stat").read_text().rpartition(")")[2].split() for path in processes(name)]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def disk(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(arguments, count, place):
    """One row: the costs of ``count`` vectors."""
    source = source_vectors(arguments.width)
    settings = {"uri": arguments.uri, "collection": f"scale_{count}", "dimension": arguments.width}
    engine = open_engine(arguments.engine, place / "engine", **settings)
    name = "milvus" if arguments.engine == "milvus" else None
    memory, number, started = resident(name), itertools.count(1), cpu(name)
    for block in mixtures(source, count, seed=0):
        engine.add([VectorRow(next(number), vector, 0.0, "a.jpg", ()) for vector in block])
    written = cpu(name)
    engine.finish()
    if name:
        wait_for_index(engine)
    finished = cpu(name)
    engine.close()
    queries = np.concatenate(list(mixtures(source, QUERIES, seed=1)))
    expected = exact_neighbors(source, count, queries)
    memory = memory if name else resident(name)  # of a process that only searches; a server keeps what it wrote
    engine = open_engine(arguments.engine, place / "engine", **settings, read_only=True)
    engine.search(queries[:5], K)
    hits, searching = 0, cpu(name)
    for query, right in zip(queries, expected, strict=True):
        hits += len(set(engine.search(query[None], K).numbers[0].tolist()) & set(right.tolist()))
    searching, memory = cpu(name) - searching, resident(name) - memory
    engine.close()
    folder = Path(arguments.folder) if arguments.folder else place
    return {
        "vectors": count,
        "write, CPU s": written - started,
        "finish, CPU s": finished - written,
        "disk, bytes a vector": disk(folder) / count,
        "memory, bytes a vector": memory / count,
        "query, CPU ms": 1e3 * searching / QUERIES,
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
    show(f"{arguments.engine}, {arguments.width} float32 numbers a vector", rows, arguments.json)


if __name__ == "__main__":
    main()
