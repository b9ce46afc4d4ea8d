"""Readers of the files that hold people's judgements: Crisscrossed Captions (CxC) and its captions."""

import csv
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.data.text_files import read_bytes


@dataclass(frozen=True)
class Captions:
    """Captions with the numbers of the published files."""

    texts: list[str]
    caption_ids: NDArray[np.int64]
    image_ids: NDArray[np.int64]


@dataclass(frozen=True)
class Judgements:
    """What people said of image-caption pairs, 0 (nothing in common) to 5 (the same)."""

    image_ids: NDArray[np.int64]
    caption_ids: NDArray[np.int64]
    scores: NDArray[np.float64]


def read_captions(path: Path) -> Captions:
    """Captions from a JSON list of ``{"caption_id", "image_id", "caption"}``, plain or ``.gz``."""
    expected = 'a JSON list of objects with "caption_id", "image_id" and "caption"'
    try:
        rows = json.loads(_text(path))
        return Captions(
            texts=[str(row["caption"]) for row in rows],
            caption_ids=np.array([row["caption_id"] for row in rows], dtype=np.int64),
            image_ids=np.array([row["image_id"] for row in rows], dtype=np.int64),
        )
    except (ValueError, KeyError, TypeError) as error:
        fail("--captions", expected, f"{path}: {type(error).__name__}: {error}", "see the documentation of labels")


def read_judgements(path: Path) -> Judgements:
    """Image-caption judgements from CxC's ``sits_*.csv``, plain or ``.gz``."""
    rows = csv.DictReader(io.StringIO(_text(path)))
    needed = ("caption", "image", "agg_score")
    missing = [column for column in needed if column not in (rows.fieldnames or ())]
    if missing:
        fail("--cxc", f"a CSV file with the columns {', '.join(needed)}", f"{path} without {', '.join(missing)}", _SITS)
    images, captions, scores = [], [], []
    for number, row in enumerate(rows, start=2):
        try:
            captions.append(_last_number(row["caption"]))
            images.append(_last_number(row["image"]))
            scores.append(float(row["agg_score"]))
        except (ValueError, TypeError) as error:
            fail("--cxc", "an image, a caption and a score on every line", f"{path}, line {number}: {error}", _SITS)
    return Judgements(np.array(images, dtype=np.int64), np.array(captions, dtype=np.int64), np.array(scores))


_SITS = "give CxC's sits_val.csv or sits_test.csv (image-caption judgements)"


def _last_number(name: str) -> int:
    """The number in ``COCO_val2014:sentid:732091`` and ``COCO_val2014_000000365325.jpg``."""
    found = re.findall(r"\d+", name)
    if not found:
        raise ValueError(f"no number in {name!r}")
    return int(found[-1])


def _text(path: Path) -> str:
    return read_bytes(path).decode("utf-8-sig")
