"""Caches of a dataset: embeddings of captions, and unfinished features."""

import json
from functools import cache

import numpy as np

from bcls.features.arrays import SplitFile, finished_splits
from bcls.labels.cache import open_rows, read_manifest, write_rows
from tests.fuzz.damage import damage_json
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import put
from tests.fuzz.readers.arrays import damage_npy, npy

_MANIFEST = {"format": 1, "encoder": "minilm", "weights": "0", "captions": 3}
_FEATURES = {
    "format": "bcls-features",
    "version": 1,
    "settings": {"backbone": "a"},
    "splits": {"train": {"images": "0", "zero_rows": []}},
}
_DEPENDS = {"images": "0", "shape": [4, 2]}


def read_label_manifest(content, folder):
    put(folder, "embeddings.npy", npy(np.ones((3, 2), np.float16)))
    put(folder, "manifest.json", content)
    read_manifest(folder)


def read_label_rows(content, folder):
    put(folder, "embeddings.npy", content)
    open_rows(folder, 3)


def take_up_labels(content, folder):
    """The next run gives correct rows, whatever the progress file of an interrupted run contains."""
    rows = np.arange(6, dtype=np.float16).reshape(3, 2)
    put(folder, "embeddings.part.npy", npy(rows * 0))
    put(folder, "progress.json", content)
    write_rows(folder, _MANIFEST, 3, 1, lambda left: iter([(number, rows[number : number + 1]) for number in left]))


def read_features(content, folder):
    put(folder, "manifest.json", content)
    found = finished_splits(folder, {"backbone": "a"})
    return [one["zero_rows"] for one in found.values()]


def take_up_features(content, folder):
    put(folder, ".train.part", npy(np.zeros((4, 2), np.float16)))
    put(folder, ".train.blocks", content)
    made = SplitFile(folder, "train", (4, 2), _DEPENDS)
    made.write(0, 0, np.ones((2, 2), np.float16), [])


@cache
def progress():
    return [json.dumps({"manifest": _MANIFEST, "done": [0, 2]}).encode()]


def blocks():
    lines = [_DEPENDS, {"block": 0, "zero": []}, {"block": 1, "zero": ["a"]}]
    return ["".join(json.dumps(line) + "\n" for line in lines).encode()]


READERS = (
    Reader("label manifest", lambda: [json.dumps(_MANIFEST).encode()], read_label_manifest, damage_json),
    Reader("label rows", lambda: [npy(np.ones((3, 2), np.float16))], read_label_rows, damage_npy),
    Reader("label progress", progress, take_up_labels, damage_json),
    Reader("feature manifest", lambda: [json.dumps(_FEATURES).encode()], read_features, damage_json),
    Reader("feature blocks", blocks, take_up_features, damage_json),
)
