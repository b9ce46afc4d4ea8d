"""What people said of images and captions: Crisscrossed Captions (CxC), and Flickr8k in CLIPScore's protocol."""

import csv
import math
import re
from collections.abc import Callable, Iterator
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
_MARKS = range(1, 5)


class CxCPairs(NamedTuple):
    """Rows of a CxC table: two ids and the mean mark, 0 (nothing in common) to 5 (the same), of each pair."""

    #: ``(n,)`` COCO's ids of the first column.
    first: NDArray[np.int64]
    #: ``(n,)`` COCO's ids of the second column.
    second: NDArray[np.int64]
    #: ``(n,)`` what people said.
    score: NDArray[np.float64]


class HumanRatings(NamedTuple):
    """Rows of judgements: score the pair of each row with a model, and compare with the ratings."""

    #: ``(n,)`` file names of the photos; the groups of a bootstrap.
    photos: NDArray[np.str_]
    #: ``(n,)`` ids of the captions, the file name of the photo they were written for, ``#`` and a number.
    caption_ids: NDArray[np.str_]
    #: ``(n,)`` what people said.
    ratings: NDArray[np.float64]


def read_cxc(path: str | Path, kind: str | None = None) -> CxCPairs:
    """Read a table of CxC, plain or ``.gz``.

    Args:
        path: ``sits_*.csv`` (a caption and an image), ``sts_*.csv`` (two captions) or ``sis_*.csv`` (two images).
        kind: ``"sits"``, ``"sts"`` or ``"sis"``, to refuse tables of another kind.

    Returns:
        The pairs with COCO's numbers as ids, and their scores.

    Raises:
        ValueError: If there is no such file, or a line is not of that form; the line is named.
    """
    known = [*_COLUMNS.values()] if kind is None else [_COLUMNS[check_choice("kind", kind, _COLUMNS)]]
    rows = _cells(path)
    _, head = next(rows, (0, []))
    if head[:2] not in known or head[2:3] != ["agg_score"]:
        expected = " or ".join(",".join([*columns, "agg_score"]) for columns in known)
        fail(
            f"{path}, line 1",
            f"the columns {expected}",
            ",".join(head)[:60] or "none",
            f"give CxC's {kind or 'sits'}_*.csv",
        )
    pairs, scores = [], []
    for line, row in rows:
        found = [match for match in (_ID.search(cell[-60:]) for cell in row[:2]) if match]
        try:
            scores.append(float(row[2]))
            pairs.append((int(found[0][1]), int(found[1][1])))
            if not math.isfinite(scores[-1]) or max(pairs[-1]) >= 2**63:
                raise ValueError
        except (IndexError, ValueError):
            expected = "two names that end in a number, and a score"
            fail(f"{path}, line {line}", expected, ",".join(row)[:200], "download the table again")
    _check_count(path, len(scores))
    ids = np.array(pairs, dtype=np.int64)
    return CxCPairs(ids[:, 0], ids[:, 1], np.array(scores, dtype=np.float64))


def flickr8k_expert(path: str | Path) -> HumanRatings:
    """Read ``ExpertAnnotations.txt`` as CLIPScore does: each of the three marks of a pair is a row.

    Args:
        path: The file of the dataset's release: photo, caption id and three marks from 1 to 4, with tabs between.

    Returns:
        The rows; 16,992 of them for the whole file, for which CLIPScore prints tau-c.

    Raises:
        ValueError: If there is no such file, or a line is not of that form; the line is named.
    """

    def marks(fields: list[str]) -> list[float]:
        values = [int(field) for field in fields]
        if len(values) != 3 or any(value not in _MARKS for value in values):
            raise ValueError
        return [float(value) for value in values]

    return _ratings(path, "a photo, a caption id and three marks from 1 to 4", marks)


def flickr8k_crowdflower(path: str | Path) -> HumanRatings:
    """Read ``CrowdFlowerAnnotations.txt`` as CLIPScore does: the share of people who said yes to a pair is a row.

    Args:
        path: The file of the dataset's release: photo, caption id, share of yes, yes and no, with tabs between.

    Returns:
        The rows, for which CLIPScore prints tau-b.

    Raises:
        ValueError: If there is no such file, a line is not of that form, or its share is not that of its counts; the
            line is named.
    """

    def share(fields: list[str]) -> list[float]:
        stated, (yes, no) = float(fields[0]), (int(field) for field in fields[1:])
        # Asked this way round, a share that is no number fails as well.
        if min(yes, no) < 0 or not abs(stated * (yes + no) - yes) <= 1e-6 * (yes + no):
            raise ValueError
        return [yes / (yes + no)]

    return _ratings(path, "a photo, a caption id, the share of yes, and the numbers of yes and no", share)


def _ratings(path: str | Path, expected: str, parse: Callable[[list[str]], list[float]]) -> HumanRatings:
    images, captions, ratings = [], [], []
    for number, line in enumerate(_lines(path), start=1):
        fields = line.split("\t")
        try:
            image, caption = fields[:2]
            written_for, _, index = caption.rpartition("#")
            values = parse(fields[2:])
            int(index)
        except (ValueError, IndexError, ArithmeticError):
            fail(f"{path}, line {number}", expected, repr(line.strip()[:200]), "give the file of the release")
        if written_for != image:  # CLIPScore leaves out a photo with a caption that was written for it
            images += [image] * len(values)
            captions += [caption] * len(values)
            ratings += values
    _check_count(path, len(ratings))
    return HumanRatings(np.array(images, dtype=str), np.array(captions, dtype=str), np.array(ratings, dtype=np.float64))


def _check_count(path: str | Path, rows: int) -> None:
    if rows < 2:
        fail(str(path), "at least two judgements, to compare them", rows, "is the file whole?")


def _cells(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Number of the line and cells of each row of a CSV file."""
    reader = csv.reader(_lines(path))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        fail(f"{path}, line {reader.line_num}", "rows of a CSV file", str(error), "download the table again")


def _lines(path: str | Path) -> list[str]:
    file = find_file(Path(path))
    if not file.is_file():
        fail("path", "a file", f"nothing at {path}", "check the name")
    return read_lines(file)
