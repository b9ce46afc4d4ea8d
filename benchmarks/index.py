"""The index against its bars on this machine's CPU: ``python -m benchmarks.index``, with ``BCLS_DATA`` set.

Four parts, each by itself with ``--only``:

- ``indexing``: photos a second of ``build_index`` on Flickr8k's zip, over those of the bare network on a sample of them
  that is already in memory, before and after; the faster of two ways to fill the processor is the rival.
- ``queries``: milliseconds of a text query, end to end, with 8 clients at once and no cache.
- ``million``: a million vectors, made from real ones by seeded mixing: recall of the graph against exact search,
  milliseconds of a query, memory.
- ``kill``: a thousand rounds of indexing, each killed at a random moment.
"""

import argparse
import itertools
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from bcls.cli.main import keep_freed_memory
from bcls.data.text_files import read_json
from bcls.models import build, load
from bcls.search.build import build_index
from bcls.search.embedding import BATCH, image_vectors, prepare
from bcls.search.engine import Row
from bcls.search.faiss_engine import FaissEngine
from bcls.search.index import IndexSettings, open_index
from bcls.search.service import Service, ServiceSettings
from benchmarks.flickr8k import data
from benchmarks.tables import show_ratios

ROOT = Path(__file__).parents[1]
CLIENTS, MIXED, NOISE = 8, 3, 0.3
#: Photos that the bare network is timed on.
SAMPLE = 512


def model_folder(name, place):
    """The model's name, or the folder of a dual encoder with packaged parts and fresh heads."""
    if name != "fresh":
        return name
    torch.manual_seed(0)
    build({"name": "dual", "image": "efficientnet-lite0"}).save_pretrained(place / "model")
    return str(place / "model")


def part_of_zip(names, path):
    """The named photos in a zip of their own; the whole zip where it is all of them."""
    with zipfile.ZipFile(data() / "images_224.zip") as whole, zipfile.ZipFile(path, "w") as part:
        if len(names) == sum(name.endswith(".webp") for name in whole.namelist()):
            return data() / "images_224.zip"
        for name in names:
            part.writestr(name, whole.read(name))
    return path


def bare_rates(model, archive):
    """Photos a second of the network alone on decoded pixels: all threads on a batch, and a batch for each thread."""
    with zipfile.ZipFile(archive) as pack:
        pixels = [prepare(model, [Image.open(pack.open(name)).convert("RGB")]) for name in pack.namelist()]
    batches = [pixels[start : start + BATCH] for start in range(0, len(pixels), BATCH)]
    threads, rates = torch.get_num_threads(), []
    for lanes in (1, threads):
        started = time.perf_counter()
        with ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(threads // lanes,)) as pool:
            list(pool.map(partial(image_vectors, model), batches))
        rates.append(len(pixels) / (time.perf_counter() - started))
    torch.set_num_threads(threads)
    return rates


def measure_indexing(rows, arguments, place):
    folder = model_folder(arguments.model, place)
    model = load(folder)
    names = photo_names(arguments.photos)
    archive, sample = (
        part_of_zip(names, place / "all.zip"),
        part_of_zip(names[:: max(1, len(names) // SAMPLE)], place / "few.zip"),
    )
    bare_rates(model, sample)  # warms up
    bare = [bare_rates(model, sample)]
    started = time.perf_counter()
    build_index(archive, IndexSettings(out=str(arguments.index or place / "index"), model=folder), model=model)
    ours = len(names) / (time.perf_counter() - started)
    bare.append(bare_rates(model, sample))
    rival = max(statistics.mean(rates) for rates in zip(*bare, strict=True))
    what = f"indexing {len(names)} photos: photos/s, index and bare network"
    rows.append((what, ours, rival, ours / rival, ">= 0.8"))


def photo_names(count):
    """The first photos of Flickr8k's zip."""
    with zipfile.ZipFile(data() / "images_224.zip") as pack:
        return sorted(name for name in pack.namelist() if name.endswith(".webp"))[:count]


def index_of_photos(arguments, place):
    """The index that was given, or one of Flickr8k's photos."""
    if arguments.index is not None and arguments.index.exists():
        return arguments.index
    settings = IndexSettings(out=str(arguments.index or place / "photos"), model=model_folder(arguments.model, place))
    build_index(part_of_zip(photo_names(arguments.photos), place / "photos.zip"), settings)
    return arguments.index or place / "photos"


def measure_queries(rows, arguments, place):
    folder = index_of_photos(arguments, place)
    images = read_json(data() / "dataset_flickr8k.json.gz")["images"]
    texts = [sentence["raw"] for image in images[:1000] for sentence in image["sentences"][:1]]
    times, lock = [], threading.Lock()

    def client(own):
        for text in own:
            started = time.perf_counter()
            service.search(text, k=10)
            with lock:
                times.append(1e3 * (time.perf_counter() - started))

    with Service(folder, settings=ServiceSettings(cache=0, timeout=60)) as service:
        for text in texts[-20:]:
            service.search(text)
        threads = [
            threading.Thread(target=client, args=(texts[n : arguments.queries : CLIENTS],)) for n in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for share, bar in ((50, 60), (99, 250)):
        value = float(np.percentile(times, share))
        rows.append((f"query, {CLIENTS} clients, no cache: p{share} ms / {bar}", value, bar, value / bar, "<= 1"))


def mixtures(real, count, seed):
    """Unit vectors that are weighted sums of a few real ones and a little noise, in blocks."""
    rng = np.random.default_rng(seed)
    for start in range(0, count, 4096):
        size = min(4096, count - start)
        weights = rng.dirichlet(np.ones(MIXED), size).astype(np.float32)
        chosen = real[rng.integers(0, len(real), (size, MIXED))]
        made = np.einsum("nm,nmd->nd", weights, chosen)
        noise = rng.standard_normal(made.shape, dtype=np.float32) / np.sqrt(made.shape[1], dtype=np.float32)
        made += NOISE * np.linalg.norm(made, axis=1, keepdims=True) * noise
        yield made / np.linalg.norm(made, axis=1, keepdims=True)


def real_vectors(arguments, place):
    """Vectors of Flickr8k's photos, in the directions in which they differ most."""
    index = open_index(index_of_photos(arguments, place))
    vectors = index.photos.vectors(index.photos.numbers().tolist())
    index.close()
    directions = np.linalg.svd(vectors, full_matrices=False)[2][: arguments.width]
    vectors = vectors @ directions.T
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def measure_million(rows, arguments, place):
    real = real_vectors(arguments, place)
    count, width = arguments.vectors, real.shape[1]
    engine = FaissEngine(place / "million", width, exact=min(200_000, count // 2))
    number = itertools.count(1)
    started = time.perf_counter()
    for block in mixtures(real, count, seed=0):
        engine.add([Row(next(number), vector, 0.0, "", ()) for vector in block])
    wrote = time.perf_counter() - started
    engine.finish()
    built = time.perf_counter() - started - wrote
    engine.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    queries = np.concatenate(list(mixtures(real, 500, seed=1)))
    best = np.full((len(queries), 10), -2.0, np.float32), np.full((len(queries), 10), -1)
    first = 1
    for block in mixtures(real, count, seed=0):
        numbers = np.broadcast_to(np.arange(first, first + len(block)), (len(queries), len(block)))
        scores = np.concatenate([best[0], queries @ block.T], axis=1)
        numbers = np.concatenate([best[1], numbers], axis=1)
        top = np.argpartition(-scores, 10, axis=1)[:, :10]
        best = np.take_along_axis(scores, top, 1), np.take_along_axis(numbers, top, 1)
        first += len(block)
    reader = FaissEngine(place / "million", width, read_only=True, exact=min(200_000, count // 2))
    reader.search(queries[:5], 10)
    times, hits = [], 0
    for query, expected in zip(queries, best[1], strict=True):
        started = time.perf_counter()
        found = reader.search(query[None], 10).numbers[0]
        times.append(1e3 * (time.perf_counter() - started))
        hits += len(set(found.tolist()) & set(expected.tolist()))
    reader.close()
    recall, middle = hits / best[1].size, statistics.median(times)
    file = sum(path.stat().st_size for path in (place / "million").glob("*.faiss")) / 2**30
    rows.append((f"{count} x {width}, graph: recall@10 / 0.98", recall, 0.98, recall / 0.98, ">= 1"))
    rows.append((f"{count} x {width}, graph: p50 ms / 15", middle, 15, middle / 15, "<= 1"))
    rows.append(
        (f"{count} x {width}: GB of the mapped file, peak GB while building", file, peak, file / peak, "stated")
    )
    rows.append((f"{count} x {width}: seconds to write, to build the graph", wrote, built, wrote / built, "stated"))


def measure_kill(rows, arguments, place):
    command = [sys.executable, "-m", "tests.index.killing", "--rounds", str(arguments.kills)]
    run = subprocess.run(command, cwd=ROOT, check=False)  # noqa: S603
    rows.append((f"{arguments.kills} killed runs: exit code", run.returncode, 0, float(run.returncode), "0"))


PARTS = {"indexing": measure_indexing, "queries": measure_queries, "million": measure_million, "kill": measure_kill}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--model", default="photo", help="name or folder; fresh: packaged encoders with new heads")
    parser.add_argument("--photos", type=int, default=8091)
    parser.add_argument("--index", type=Path, help="keep the index of the photos here, or use the one that is there")
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=512, help="of the vectors of --only million")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    keep_freed_memory()  # as `bcls` does
    rows = []
    for part in arguments.only:
        with tempfile.TemporaryDirectory() as place:
            PARTS[part](rows, arguments, Path(place))
    show_ratios(rows, arguments.json)


if __name__ == "__main__":
    main()
