"""Speed of embedding captions, and memory at the size of COCO: ``python -m benchmarks.labels``.

The baseline is ``SentenceTransformer.encode(captions)`` with its default batch size of 32. Both embed the same captions
of Flickr8k (in the folder ``BCLS_DATA``) with the same weights, alternating; the ratio of the medians and the largest
difference between unit rows are printed, also for bfloat16.

``--coco-size`` embeds as many captions as COCO has and computes the labels of batches from the file. Random vectors
replace the text model, whose time is not measured; captions, file and labels are real.
"""

import argparse
import gzip
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.flickr8k import data
from benchmarks.tables import show

COCO_CAPTIONS = 566_747


def flickr8k_captions():
    with gzip.open(data() / "dataset_flickr8k.json.gz", "rt", encoding="utf-8") as file:
        return [sentence["raw"] for image in json.load(file)["images"] for sentence in image["sentences"]]


def alternate(functions, repeats, clock):
    """Median seconds and the result of each function; they are called alternately."""
    took, results = {name: [] for name in functions}, {}
    for _ in range(repeats):
        for name, run in functions.items():
            started = clock()
            results[name] = run()
            took[name].append(clock() - started)
    return {name: statistics.median(times) for name, times in took.items()}, results


def speed(sentences, repeats, clock, path):
    from sentence_transformers import SentenceTransformer

    from bcls._core.extras import minilm_folder
    from bcls.labels.encoders import load_text_encoder

    texts = flickr8k_captions()
    chosen = np.random.default_rng(0).permutation(len(texts))[:sentences]
    texts = [texts[index] for index in sorted(chosen)]
    library = SentenceTransformer(str(minilm_folder()), local_files_only=True)
    functions = {
        "SentenceTransformer.encode": lambda: library.encode(texts, show_progress_bar=False),
        "bcls, float32": partial(load_text_encoder("minilm").encode, texts),
        "bcls, bfloat16": partial(load_text_encoder("minilm", precision="bfloat16").encode, texts),
    }
    took, rows = alternate(functions, repeats, clock)
    table = []
    plain, first = next(iter(took.values())), next(iter(rows.values()))
    for name, seconds in took.items():
        gap = float(np.abs(rows[name] - first).max())
        row = {"encoder": name, "seconds": seconds, "captions/s": len(texts) / seconds}
        table.append({**row, "ratio": plain / seconds, "largest difference": gap})
    show(f"{len(texts):,} captions", table, path)
    # Rows are stored as float16, so differences of bfloat16 matter only beyond that.
    exact, stored = rows["bcls, float32"], rows["bcls, float32"].astype(np.float16).astype(np.float32)
    print(f"storing float32 rows as float16 changes them by {np.abs(stored - exact).max():.1e}")


class Noise:
    """A text encoder that returns random unit rows."""

    dimension = 384

    def encode(self, texts):
        """Return one row per text."""
        rows = np.random.default_rng(len(texts)).standard_normal((len(texts), 384), dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def write_coco_size(folder):
    """Write a dataset with as many captions as COCO has: those of Flickr8k repeated, five per image."""
    from bcls.data.records import Caption, Content, ImageRecord, write_dataset

    texts = flickr8k_captions()
    captions = tuple(
        Caption(str(row), str(row // 5), f"{texts[row % len(texts)]} {row // len(texts)}", "train")
        for row in range(COCO_CAPTIONS)
    )
    images = tuple(ImageRecord(str(image), "train") for image in range(-(-COCO_CAPTIONS // 5)))
    write_dataset(folder, Content("coco-size", images, captions))


def embed_coco_size(folder):
    from bcls.data.dataset import open_dataset
    from bcls.labels import cache

    cache.load_text_encoder = lambda name, precision: Noise()
    return cache.cached_embeddings(open_dataset(folder))


def embedding(folder):
    started = time.perf_counter()
    embed_coco_size(folder)
    return time.perf_counter() - started


def labels_of_batches(folder, batches=500, size=128):
    """Compute labels as in training: all captions of the images of a batch against one of each."""
    from bcls.data.dataset import open_dataset
    from bcls.labels.relevance import relevance

    rows, dataset = embed_coco_size(folder), open_dataset(folder)
    owner = dataset.image_of_caption
    first = np.searchsorted(owner, np.arange(len(dataset.images)))
    source = np.random.default_rng(0)
    started = time.perf_counter()
    for _ in range(batches):
        images = np.sort(source.choice(len(dataset.images) - 1, size, replace=False))
        references = (first[images][:, None] + np.arange(5)).ravel()
        relevance(rows[references], rows[first[images]], np.repeat(np.arange(size), 5), np.arange(size))
    return (time.perf_counter() - started) / batches


def in_own_process(work, folder):
    """The result of ``work(folder)`` in a process of its own, and the peak memory of that process in MB."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_with_memory, (work, folder))


def _with_memory(work, folder):
    return work(folder), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def coco_size():
    with tempfile.TemporaryDirectory() as folder:
        in_own_process(write_coco_size, folder)
        seconds, making = in_own_process(embedding, folder)
        size = (Path(folder) / "labels" / "minilm" / "embeddings.npy").stat().st_size / 1e6
        each, reading = in_own_process(labels_of_batches, folder)
    print(f"{COCO_CAPTIONS:,} captions, embeddings.npy {size:.0f} MB")
    print(f"computing it: {seconds:.0f} s without the text model, peak memory {making:.0f} MB including the file")
    print(f"labels of batches of 128: {1e3 * each:.1f} ms each, peak memory {reading:.0f} MB including the file")
    if max(making, reading) > 2000:
        raise SystemExit("more than 2 GB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=40_000, help="captions to embed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true", help="measure CPU time, on a machine in use")
    parser.add_argument("--coco-size", action="store_true", help="measure memory at the size of COCO instead of speed")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    if given.coco_size:
        coco_size()
    else:
        clock = time.process_time if given.cpu_time else time.perf_counter
        speed(given.sentences, given.repeats, clock, given.json)


if __name__ == "__main__":
    main()
