"""Make the lists of absent queries: ``python scripts/absent_queries.py --data DIR``.

Absent queries are about things that are not in the test photos.

``configs/photo/absent.json`` gets two lists of 100 queries for an index of the 1,000 test photos of Flickr8k. They were
written before any calibration was fitted, and are used for reporting only.

``classes``: names of ImageNet classes, drawn with a fixed seed from those of which no lemma occurs in any of the 40,000
captions, in singular or plural. ``captions``: training captions that are far from every test photo. The label of a
caption and a photo is the largest cosine of the caption with a caption of the photo, by MiniLM. No training caption has
a largest label below 0.3 (the least is 0.302), so these are the 100 with the smallest largest label.
"""

import argparse
import json
import re
from pathlib import Path

import numpy as np

from bcls._core.files import write_whole
from bcls.data import open_dataset
from bcls.labels import load_text_encoder

ROOT = Path(__file__).parents[1]
CLASSES, ABSENT = ROOT / "src/bcls/models/photo/classes.json", ROOT / "configs/photo/absent.json"
SEED, COUNT = 0, 100


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="Flickr8k as a dataset folder")
    data = open_dataset(parser.parse_args().data)
    said = " " + " ".join(_words(caption.text) for caption in data.captions) + " "
    names = [one["names"] for one in json.loads(CLASSES.read_text(encoding="utf-8"))]
    absent = [lemmas[0] for lemmas in names if not any(_occurs(_words(lemma), said) for lemma in lemmas)]
    drawn = sorted(np.random.default_rng(SEED).choice(absent, COUNT, replace=False).tolist())
    train, test = data.split("train").texts, data.split("test").texts
    encoder = load_text_encoder("minilm")
    largest = (encoder.encode(list(train)) @ encoder.encode(list(test)).T).max(1)
    order = np.argsort(largest, kind="stable")[:COUNT]
    about = {
        "classes_without_captions": len(absent),
        "largest_label": [round(float(largest[order[0]]), 4), round(float(largest[order[-1]]), 4)],
        "classes": drawn,
        "captions": [train[one] for one in order],
    }
    write_whole(ABSENT, json.dumps(about, indent=1) + "\n")
    print(f"{ABSENT}: {len(absent)} classes in no caption, largest labels {about['largest_label']}")


def _words(text: str) -> str:
    return " ".join(re.findall(r"[a-z]+", text.lower()))


def _occurs(words: str, text: str) -> bool:
    return any(f" {words}{ending} " in text for ending in ("", "s", "es"))


if __name__ == "__main__":
    main()
