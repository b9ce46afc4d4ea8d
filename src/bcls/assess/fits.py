"""Whether an array belongs to a split: its ids, its shape and its values."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bcls._checks import fail
from bcls.assess.arrays import Stored

if TYPE_CHECKING:
    from bcls.data import Dataset

# Elements looked at at once: 16 MB of float32.
BLOCK = 1 << 22


def check_captions(split: "Dataset") -> None:
    """Check that a split has captions at all, without which there is nothing to ask."""
    if not split.captions:
        fail(str(split.folder), "a split with captions", f"{len(split.images)} images and no caption", "choose another")


def check_ids(stored: Stored, split: "Dataset") -> None:
    """Check the ids that came with an array against the images and captions of the split.

    Raises:
        ValueError: If some are unknown, missing or repeated, which are counted and shown, or in another order.
    """
    _compare_ids(stored, "image_ids", split.image_ids)
    _compare_ids(stored, "caption_ids", [caption.caption_id for caption in split.captions])


def _compare_ids(stored: Stored, key: str, expected: Sequence[str]) -> None:
    came = stored.ids.get(key)
    if came is None or came == list(expected):
        return
    known, given = set(expected), set(came)
    unknown, missing = [one for one in came if one not in known], [one for one in expected if one not in given]
    parts = [f"{len(ids)} {word} ({_some(ids)})" for word, ids in (("unknown", unknown), ("missing", missing)) if ids]
    if len(given) < len(came):
        parts.append(f"{len(came) - len(given)} repeated")
    remedy = "take the scores of this split, or another --split"
    if not parts:
        places = [place for place, (one, other) in enumerate(zip(came, expected, strict=True)) if one != other]
        first = places[0]
        parts = [f"another order ({len(places)} places differ, first {came[first]!r} for {expected[first]!r})"]
        remedy = "sort rows and columns as the dataset has them"
    fail(stored.name, f"{key} of the split's {len(expected)} {_plural(key)}", ", ".join(parts), remedy)


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")


def _plural(key: str) -> str:
    return "images" if key == "image_ids" else "captions"


def check_similarity_shape(name: str, shape: tuple[int, ...], split: "Dataset") -> None:
    """Check that a matrix has a row for each image and a column for each caption of a split.

    Args:
        name: What the message calls the matrix.
        shape: Of the matrix.
        split: Images and captions.

    Raises:
        ValueError: If not; a transposed matrix and repeated images are named as such.
    """
    images, captions = len(split.images), len(split.captions)
    if shape == (images, captions):
        return
    remedy = "rows are images and columns captions of the chosen --split"
    if shape == (captions, images):
        remedy = "it is transposed: save similarity.T"
    elif shape == (captions, captions):
        remedy = "it repeats each image for its captions: keep one row an image"
    elif len(shape) == 2 and shape[0] == images and shape[1] < captions:
        remedy += "; a ranking cut to its first items will not do"
    expected = f"shape ({images}, {captions}), the images and captions of the split"
    fail(name, expected, shape, remedy)


def check_finite(stored: Stored) -> None:
    """Check that every value is finite.

    Raises:
        ValueError: If one is not; its row is named.
    """
    for rows in row_blocks(*stored.array.shape):
        block = np.asarray(stored.array[rows])
        # The extremes carry any NaN or infinity along and need no mask of the block's size.
        if np.isfinite(block.min()) and np.isfinite(block.max()):
            continue
        row = int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
        value = block[row][~np.isfinite(block[row])][0]
        remedy = "look for a division by zero"
        if value == -np.inf:
            remedy = "a ranking cut to its first items will not do: give the scores of all pairs"
        fail(stored.name, "finite numbers", f"{value} in row {rows.start + row}", remedy)


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Cut rows into blocks of about :data:`BLOCK` elements.

    Example:
        >>> list(row_blocks(3, BLOCK // 2))
        [slice(0, 2, None), slice(2, 3, None)]
    """
    return parts(rows, max(1, BLOCK // columns))


def parts(count: int, size: int) -> Iterator[slice]:
    """Cut ``range(count)`` into consecutive slices of at most ``size``.

    Example:
        >>> list(parts(3, 2))
        [slice(0, 2, None), slice(2, 3, None)]
    """
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
