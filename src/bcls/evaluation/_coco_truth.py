"""Who belongs to whom in the MS-COCO 5K test split, after its captioners and after two groups of later judges."""

import functools
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls._extras import require
from bcls.evaluation._inputs import as_array
from bcls.evaluation._targets import Ids

#: Items of each query, by id.
Gold = Mapping[int, Iterable[int]]
FOLDS = 5


@dataclass(frozen=True)
class Truth:
    """Gold pairs by id, ``(P, 2)`` each, query and item: ``pairs["cxc", "i2t"]`` has an image and a caption a row."""

    pairs: Mapping[tuple[str, str], Ids]
    #: All captions, in the order that makes the five folds of 1K, and the image of each.
    captions: Ids
    image_of_caption: Ids

    @classmethod
    def build(cls, gold: Mapping[tuple[str, str], Gold], captions: Iterable[int]) -> "Truth":
        """Make it from dicts of items; the image of a caption is what COCO says."""
        order = np.fromiter(captions, dtype=np.int64)
        owner = gold["coco", "t2i"]
        images = np.array([next(iter(owner[int(caption)])) for caption in order], dtype=np.int64)
        return cls({name: _as_pairs(items) for name, items in gold.items()}, order, images)

    def images(self) -> Ids:
        """List all images once, by id."""
        return np.unique(self.image_of_caption)

    def folds(self) -> list[tuple[Ids, Ids]]:
        """Give the images and the captions, by id, of each of the five folds."""
        parts = zip(np.split(self.image_of_caption, FOLDS), np.split(self.captions, FOLDS), strict=True)
        return [(np.unique(images), captions) for images, captions in parts]


def _as_pairs(items: Gold) -> Ids:
    pairs = {(int(query), int(item)) for query, answers in items.items() for item in answers}
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


@functools.cache
def load_truth() -> Truth:
    """Read the ground truth that ships with ``eccv_caption``.

    Raises:
        MissingExtraError: If that package is not installed.
    """
    with warnings.catch_warnings():
        # It warns that a faster JSON reader is missing, for which its files are too small.
        warnings.simplefilter("ignore")
        package = require("eccv_caption", "eval", "the ground truth of ECCV Caption, CxC and COCO 5K")
    folder = Path(str(package.__file__)).parent / "data"
    files = {"coco": "original", "cxc": "cxc", "eccv": "eccv"}
    gold: dict[tuple[str, str], Gold] = {}
    for name, file in files.items():
        for direction, ending in (("i2t", "image_to_caption"), ("t2i", "caption_to_image")):
            text = (folder / f"{file}_{ending}.json").read_text(encoding="utf-8")
            gold[name, direction] = {int(query): items for query, items in json.loads(text).items()}
    return Truth.build(gold, np.load(folder / "coco_test_ids.npy"))


class Places:
    """Turns ids into rows or columns of a matrix, in whatever order the caller has them."""

    def __init__(self, argument: str, ids: Ids, known: Ids, others: Ids) -> None:
        self._ids = _check_ids(argument, ids, known, others)
        self._order = np.argsort(self._ids)

    def __call__(self, ids: Ids) -> Ids:
        """Look up the place of each id."""
        found: Ids = self._order[np.searchsorted(self._ids, ids, sorter=self._order)]
        return found


def as_ids(argument: str, value: object) -> Ids:
    """Check that ``value`` is a list, an array or a tensor of integers.

    Example:
        >>> as_ids("image_ids", range(3))
        array([0, 1, 2])
    """
    ids = as_array(argument, value)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        fail(argument, "a list of integers", f"shape {ids.shape}, dtype {ids.dtype}", "give the ids of COCO's files")
    return ids.astype(np.int64)


def _check_ids(argument: str, ids: Ids, known: Ids, others: Ids) -> Ids:
    """Check that the ids are those of the test split, each once, in any order."""
    kind = argument.removesuffix("_ids")
    expected = f"the {len(known)} {kind} ids of the COCO 5K test split, each once"
    unknown, missing = ids[~np.isin(ids, known)], known[~np.isin(known, ids)]
    if unknown.size and unknown.size == ids.size and np.isin(ids, others).all():
        fail(
            argument, expected, f"{len(ids)} ids of the other kind", "rows are images: swap the ids, transpose the rest"
        )
    values, times = np.unique(ids, return_counts=True)
    parts = [("unknown", unknown), ("missing", missing), ("repeated", values[times > 1])]
    wrong = [f"{len(part)} {name} ({_some(part)})" for name, part in parts if len(part)]
    if wrong:
        fail(argument, expected, ", ".join(wrong), "evaluate the whole split and keep the ids of its files")
    return ids


def _some(ids: NDArray[np.int64]) -> str:
    return ", ".join(str(one) for one in ids[:3]) + (", ..." if len(ids) > 3 else "")
