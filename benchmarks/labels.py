"""Speed of embedding captions, and memory at the size of COCO: ``python -m benchmarks.labels``.

The rival is ``SentenceTransformer.encode(captions)`` as it comes, with its default batches of 32. Both embed the same
captions of Flickr8k, found through ``BCLS_DATA``, with the same weights, one after the other in turn; the ratio of the
medians and the largest difference between unit rows are printed, and bfloat16 beside them.

``--coco-size`` embeds as many captions as COCO has and makes the labels of batches from the file. Random vectors
stand in for the text model, whose time is not what is asked; captions, file and labels are real.
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


def in_turn(rivals, repeats, clock):
    """Median seconds of each, run one after another in turn, and what each gave."""
    took, results = {name: [] for name in rivals}, {}
    for _ in range(repeats):
        for name, run in rivals.items():
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
    rivals = {
        "SentenceTransformer.encode": lambda: library.encode(texts, show_progress_bar=False),
        "bcls, float32": partial(load_text_encoder("minilm").encode, texts),
        "bcls, bfloat16": partial(load_text_encoder("minilm", precision="bfloat16").encode, texts),
    }
    took, rows = in_turn(rivals, repeats, clock)
    table = []
    plain, first = next(iter(took.values())), next(iter(rows.values()))
    for name, seconds in took.items():
        gap = float(np.abs(rows[name] - first).max())
        row = {"encoder": name, "seconds": seconds, "captions a second": len(texts) / seconds}
        table.append({**row, "ratio": plain / seconds, "largest difference": gap})
    show(f"{len(texts):,} captions", table, path)
    # float16 is how rows are stored: what bfloat16 adds to that is what counts.
    exact, stored = rows["bcls, float32"], rows["bcls, float32"].astype(np.float16).astype(np.float32)
    print(f"storing float32 rows as float16 changes them by {np.abs(stored - exact).max():.1e}")


class Noise:
    """Random unit rows in place of the text model's."""

    dimension = 384

    def encode(self, texts):
        """As a text encoder does."""
        rows = np.random.default_rng(len(texts)).standard_normal((len(texts), 384), dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def write_coco_size(folder):
    """A dataset of as many captions as COCO has: Flickr8k's over and over, five an image."""
    from bcls.data.records import Caption, ImageRecord
    from bcls.data.write import Content, write_dataset

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
    """Labels as training makes them: all captions of the images of a batch against one of each."""
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


def alone(work, folder):
    """What ``work(folder)`` gives, and the most memory of a process that does nothing else, in MB."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_alone, (work, folder))


def _alone(work, folder):
    return work(folder), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def coco_size():
    with tempfile.TemporaryDirectory() as folder:
        alone(write_coco_size, folder)
        seconds, making = alone(embedding, folder)
        size = (Path(folder) / "labels" / "minilm" / "embeddings.npy").stat().st_size / 1e6
        each, reading = alone(labels_of_batches, folder)
    print(f"{COCO_CAPTIONS:,} captions, embeddings.npy {size:.0f} MB")
    print(f"making it: {seconds:.0f} s beside the text model, at most {making:.0f} MB in memory, file included")
    print(f"labels of batches of 128: {1e3 * each:.1f} ms each, at most {reading:.0f} MB, file included")
    if max(making, reading) > 2000:
        raise SystemExit("more than 2 GB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=40_000, help="captions to embed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true", help="time of this process alone, on a machine with others")
    parser.add_argument("--coco-size", action="store_true", help="memory at the size of COCO instead of speed")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    given = parser.parse_args()
    if given.coco_size:
        coco_size()
    else:
        clock = time.process_time if given.cpu_time else time.perf_counter
        speed(given.sentences, given.repeats, clock, given.json)


if __name__ == "__main__":
    main()
