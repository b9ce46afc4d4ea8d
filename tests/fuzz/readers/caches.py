"""Embeddings of captions and unfinished features in a dataset folder."""

import json

import numpy as np

from bcls.features.array_cache import ArrayCache
from bcls.features.extraction import finished_splits
from bcls.labels.cache import open_rows, read_manifest, write_cache
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
_SETTINGS = {"images": "0", "shape": [4, 2]}


def read_label_manifest(content, folder):
    put(folder, "embeddings.npy", npy(np.ones((3, 2), np.float16)))
    put(folder, "manifest.json", content)
    read_manifest(folder)


def read_label_rows(content, folder):
    put(folder, "embeddings.npy", content)
    open_rows(folder, 3)


def resume_labels(content, folder):
    """Whatever the journal of an interrupted run contains, the next one completes."""
    rows = np.arange(6, dtype=np.float16).reshape(3, 2)
    put(folder, ".embeddings.part", npy(rows * 0))
    put(folder, ".embeddings.blocks", content)
    cache = ArrayCache(folder / "embeddings.npy", 3, 1, _MANIFEST, restart=True)
    for number in cache.remaining:
        cache.write(number, rows[number : number + 1])
    write_cache(cache, _MANIFEST)


def read_features(content, folder):
    put(folder, "manifest.json", content)
    found = finished_splits(folder, {"backbone": "a"})
    return [one["zero_rows"] for one in found.values()]


def resume_features(content, folder):
    put(folder, ".train.part", npy(np.zeros((4, 2), np.float16)))
    put(folder, ".train.blocks", content)
    cache = ArrayCache(folder / "train.npy", 4, 2, _SETTINGS)
    cache.write(0, np.ones((2, 2), np.float16))


def journal(settings, *blocks):
    """A valid journal with some finished blocks."""
    lines = [settings, *({"block": number, "zero": zero} for number, zero in blocks)]
    return ["".join(json.dumps(line) + "\n" for line in lines).encode()]


READERS = (
    Reader("label manifest", lambda: [json.dumps(_MANIFEST).encode()], read_label_manifest, damage_json),
    Reader("label rows", lambda: [npy(np.ones((3, 2), np.float16))], read_label_rows, damage_npy),
    Reader("label blocks", lambda: journal(_MANIFEST, (0, []), (2, [])), resume_labels, damage_json),
    Reader("feature manifest", lambda: [json.dumps(_FEATURES).encode()], read_features, damage_json),
    Reader("feature blocks", lambda: journal(_SETTINGS, (0, []), (1, ["a"])), resume_features, damage_json),
)
