"""Human judgements of images and captions: Crisscrossed Captions (CxC), and Flickr8k in the protocol of CLIPScore."""

import csv
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import check_choice, fail
from bcls.data.text_files import find_file, read_lines

# The first two columns of each kind of table.
_COLUMNS = {"sits": ["caption", "image"], "sts": ["caption1", "caption2"], "sis": ["image1", "image2"]}
# The number in `COCO_val2014:sentid:732091` and in `COCO_val2014_000000365325.jpg`.
_ID = re.compile(r"(?<!\d)(\d{1,19})(?:\.\w{1,10})?$")


class CxCPairs(NamedTuple):
    """Rows of a CxC table: two ids and the mean rating, from 0 (unrelated) to 5 (equivalent), of each pair."""

    #: ``(n,)`` COCO ids of the first column.
    first: NDArray[np.int64]
    #: ``(n,)`` COCO ids of the second column.
    second: NDArray[np.int64]
    #: ``(n,)`` mean ratings.
    score: NDArray[np.float64]


class HumanRatings(NamedTuple):
    """Ratings of image-caption pairs, to be compared with the scores of a model for the same pairs."""

    #: ``(n,)`` file names of the photos, which are the groups of a bootstrap.
    photos: NDArray[np.str_]
    #: ``(n,)`` ids of the captions: the file name of the photo they were written for, ``#`` and a number.
    caption_ids: NDArray[np.str_]
    #: ``(n,)`` the ratings.
    ratings: NDArray[np.float64]


def read_cxc(path: str | Path, kind: str | None = None) -> CxCPairs:
    """Read a CxC table, plain or ``.gz``.

    Args:
        path: ``sits_*.csv`` (caption and image), ``sts_*.csv`` (two captions) or ``sis_*.csv`` (two images).
        kind: ``"sits"``, ``"sts"`` or ``"sis"``, to refuse tables of another kind.

    Returns:
        The pairs with COCO ids, and their scores.

    Raises:
        ValueError: The file does not exist, or a line has another format; the message names the line.
    """
    known = [*_COLUMNS.values()] if kind is None else [_COLUMNS[check_choice("kind", kind, _COLUMNS)]]
    reader = csv.reader(_read_lines(path))
    pairs, scores = [], []
    try:
        header = next(reader, [])
        if header[:2] not in known or header[2:3] != ["agg_score"]:
            expected = " or ".join(",".join([*columns, "agg_score"]) for columns in known)
            got = ",".join(header)[:60] or "none"
            fail(f"{path}, line 1", f"the columns {expected}", got, f"pass {kind or 'sits'}_*.csv of CxC")
        for row in reader:
            ids = [int(match[1]) for match in (_ID.search(cell[-60:]) for cell in row[:2]) if match]
            try:
                score = float(row[2])
            except (ValueError, IndexError):
                score = math.nan
            if len(ids) < 2 or max(ids) >= 2**63 or not math.isfinite(score):
                expected = "two names that end with a number, and a score"
                fail(f"{path}, line {reader.line_num}", expected, ",".join(row)[:200], "download the table again")
            pairs.append(ids)
            scores.append(score)
    except csv.Error as error:
        fail(f"{path}, line {reader.line_num}", "a row of a CSV file", str(error), "download the table again")
    _check_count(path, len(scores))
    table = np.array(pairs, dtype=np.int64)
    return CxCPairs(table[:, 0], table[:, 1], np.array(scores, dtype=np.float64))


def flickr8k_expert(path: str | Path) -> HumanRatings:
    """Read ``ExpertAnnotations.txt`` as CLIPScore does: each of the three ratings of a pair is a row.

    Args:
        path: The released file: photo, caption id and three ratings from 1 to 4, separated by tabs.

    Returns:
        The rows; 16,992 for the complete file, for which CLIPScore reports tau-c.

    Raises:
        ValueError: The file does not exist, or a line has another format; the message names the line.
    """

    def parse(fields: list[str]) -> list[float]:
        values = [int(field) for field in fields]
        if len(values) != 3 or min(values) < 1 or max(values) > 4:
            raise ValueError
        return [float(value) for value in values]

    return _read_ratings(path, "a photo, a caption id and three ratings from 1 to 4", parse)


def flickr8k_crowdflower(path: str | Path) -> HumanRatings:
    """Read ``CrowdFlowerAnnotations.txt`` as CLIPScore does: the share of "yes" answers for a pair is a row.

    Args:
        path: The released file: photo, caption id, share of yes, number of yes and of no, separated by tabs.

    Returns:
        The rows, for which CLIPScore reports tau-b.

    Raises:
        ValueError: The file does not exist, a line has another format, or its share contradicts its counts; the
            message names the line.
    """

    def parse(fields: list[str]) -> list[float]:
        stated, (yes, no) = float(fields[0]), (int(field) for field in fields[1:])
        # Written so that a NaN fails as well.
        if min(yes, no) < 0 or not abs(stated * (yes + no) - yes) <= 1e-6 * (yes + no):
            raise ValueError
        return [yes / (yes + no)]

    return _read_ratings(path, "a photo, a caption id, the share of yes, and the numbers of yes and no", parse)


def _read_ratings(path: str | Path, expected: str, parse: Callable[[list[str]], list[float]]) -> HumanRatings:
    photos, captions, ratings = [], [], []
    for number, line in enumerate(_read_lines(path), start=1):
        fields = line.split("\t")
        try:
            photo, caption = fields[:2]
            written_for, _, index = caption.rpartition("#")
            values = parse(fields[2:])
            int(index)
        except (ValueError, IndexError, ArithmeticError):
            fail(f"{path}, line {number}", expected, repr(line.strip()[:200]), "pass the released file")
        if written_for != photo:  # CLIPScore excludes a photo's own captions
            photos += [photo] * len(values)
            captions += [caption] * len(values)
            ratings += values
    _check_count(path, len(ratings))
    return HumanRatings(np.array(photos, dtype=str), np.array(captions, dtype=str), np.array(ratings, dtype=np.float64))


def _read_lines(path: str | Path) -> list[str]:
    file = find_file(Path(path))
    if not file.is_file():
        fail("path", "a file", f"nothing at {path}", "check the name")
    return read_lines(file)


def _check_count(path: str | Path, rows: int) -> None:
    if rows < 2:
        fail(str(path), "at least two judgements", rows, "check that the file is complete")
