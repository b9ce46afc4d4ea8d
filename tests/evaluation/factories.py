"""A small split and scores for it."""

import json

import numpy as np

from bcls.data.dataset import open_dataset

IMAGES, EACH = 6, 2
THINGS = ("dog", "cat", "car", "bus", "man", "tree")


def make_data(folder, images=IMAGES, each=EACH, first_id=0):
    """A dataset without pictures: ``images`` of them in ``test`` with ``each`` captions, one in ``val``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "image_id": str(first_id + n),
            "caption_id": str(100 * (first_id + n) + k),
            "text": f"a {THINGS[n % len(THINGS)]} in picture {n}, take {k}",
            "split": "test" if n < images else "val",
        }
        for n in range(images + 1)
        for k in range(each)
    ]
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps({"format": "bcls-dataset", "version": 1, "name": "made"}))
    return folder


def make_split(folder, **options):
    return open_dataset(make_data(folder, **options)).split("test")


def add_image_without_captions(folder):
    """List the images, and one more in ``test`` that nobody wrote about."""
    rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text(encoding="utf-8").splitlines()]
    images = {row["image_id"]: row["split"] for row in rows} | {"silent": "test"}
    lines = [json.dumps({"image_id": image, "split": split}) + "\n" for image, split in images.items()]
    (folder / "images.jsonl").write_text("".join(lines), encoding="utf-8")


def make_scores(seed=0, images=IMAGES, each=EACH, bonus=1.0, dtype=np.float32):
    """Scores of a model that prefers the right pairs by ``bonus`` standard deviations."""
    own = np.repeat(np.arange(images), each) == np.arange(images)[:, None]
    return (bonus * own + np.random.default_rng(seed).standard_normal(own.shape)).astype(dtype)
