"""What people said about captions of Flickr8k photos, as rows for :func:`bcls.evaluation.human_correlation`."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.evaluation._files import read_lines

_MARKS = range(1, 5)


class HumanRatings(NamedTuple):
    """Rows of judgements: score the pair of each row with a model, and compare with the ratings."""

    #: ``(n,)`` file names of the photos; the groups of a bootstrap.
    photos: NDArray[np.str_]
    #: ``(n,)`` ids of the captions, the file name of the photo they were written for, ``#`` and a number.
    caption_ids: NDArray[np.str_]
    #: ``(n,)`` what people said.
    ratings: NDArray[np.float64]


def flickr8k_expert(path: str | Path, *, keep_own: bool = False) -> HumanRatings:
    """Read ``ExpertAnnotations.txt`` as CLIPScore does: each of the three marks of a pair is a row.

    Args:
        path: The file of the dataset's release: photo, caption id and three marks from 1 to 4, with tabs between.
        keep_own: Keep the pairs of a photo with a caption that was written for it. CLIPScore leaves them out.

    Returns:
        The rows; 16,992 of them for the whole file, for which CLIPScore prints tau-c.

    Raises:
        ValueError: If a line is not of that form; the line is named.
    """

    def marks(fields: list[str]) -> list[float]:
        values = [int(field) for field in fields]
        if len(values) != 3 or any(value not in _MARKS for value in values):
            raise ValueError
        return [float(value) for value in values]

    return _read(path, "a photo, a caption id and three marks from 1 to 4", marks, keep_own)


def flickr8k_crowdflower(path: str | Path, *, keep_own: bool = False) -> HumanRatings:
    """Read ``CrowdFlowerAnnotations.txt`` as CLIPScore does: the share of people who said yes to a pair is a row.

    Args:
        path: The file of the dataset's release: photo, caption id, share of yes, yes and no, with tabs between.
        keep_own: Keep the pairs of a photo with a caption that was written for it.

    Returns:
        The rows, for which CLIPScore prints tau-b.

    Raises:
        ValueError: If a line is not of that form, or its share is not that of its counts; the line is named.
    """

    def share(fields: list[str]) -> list[float]:
        stated, (yes, no) = float(fields[0]), (int(field) for field in fields[1:])
        if min(yes, no) < 0 or abs(stated * (yes + no) - yes) > 1e-6 * (yes + no):
            raise ValueError
        return [yes / (yes + no)]

    return _read(path, "a photo, a caption id, the share of yes, and the numbers of yes and no", share, keep_own)


def _read(path: str | Path, expected: str, parse: Callable[[list[str]], list[float]], keep_own: bool) -> HumanRatings:
    images, captions, ratings = [], [], []
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.rstrip("\r\n").split("\t")
        try:
            image, caption = fields[:2]
            written_for, _, index = caption.rpartition("#")
            values = parse(fields[2:])
            int(index)
        except (ValueError, ZeroDivisionError):
            fail("path", expected, f"{line.strip()!r} in line {number} of {path}", "give the file of the release")
        if keep_own or written_for != image:
            images += [image] * len(values)
            captions += [caption] * len(values)
            ratings += values
    return HumanRatings(np.array(images, dtype=str), np.array(captions, dtype=str), np.array(ratings, dtype=np.float64))
