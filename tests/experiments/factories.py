"""A small dataset with three splits, and sweep files for it."""

import yaml

from tests.training.factories import captions_of, make_data

#: Trains in a fraction of a second; word vectors of an installed package make the labels.
BASE = {
    "features": "made",
    "model": {"name": "vsepp", "width": 8, "word_width": 8},
    "loss": {"name": "bcls"},
    "labels": "wordllama",
    "word_threshold": 1,
    "batch": 8,
    "epochs": 2,
    "lr": 0.01,
}
SPLITS = ("train", "train", "train", "val", "test")


def data(folder, images=40):
    return make_data(folder, rows=captions_of(images, 3, splits=SPLITS))


def write(path, **content):
    plain = {"base": BASE, **content}
    path.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
    return path
