"""Pictures that are in more than one split, exactly or nearly."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bcls.data.check.findings import Finding
from bcls.data.check.pictures import Look

#: Least correlation of two grey thumbnails that count as one picture.
_ALIKE = 0.95
#: A thumbnail with less contrast than this has nothing to compare.
_FLAT = 4.0
_BITS = 64
_ROWS = 1024
_ONES = np.array([bin(number).count("1") for number in range(1 << 16)], dtype=np.uint8)


def same_pictures(looks: Sequence[Look]) -> Iterator[tuple[Finding, str]]:
    """Pictures with equal bytes, each with the id of the image that training should do without."""
    groups: dict[str, list[Look]] = {}
    for look in looks:
        groups.setdefault(look.sha256, []).append(look)
    for group in groups.values():
        keeper = max(group, key=_rank)
        for look in group:
            if look.image.split != keeper.image.split:
                yield _leak("same-picture", "the same file as", look, keeper)
            elif look is not keeper:
                detail = f"the same file as {keeper.image.image_id} in {look.image.split}"
                yield Finding("repeated-picture", look.image.image_id, detail), ""


def near_pictures(looks: Sequence[Look], most: int) -> Iterator[tuple[Finding, str]]:
    """Pictures of different splits that look alike though their bytes differ.

    Their difference hashes differ in at most ``most`` bits, and small grey copies correlate. Pictures of one flat
    colour are left out: they have nothing to compare.

    Args:
        looks: The pictures.
        most: Bits that may differ.
    """
    lively = [look for look in looks if look.thumbnail.std() > _FLAT]
    splits = np.unique([look.image.split for look in lively], return_inverse=True)[1]
    hashes = np.array([look.hash for look in lively], dtype=np.uint64)
    for one, other in near_pairs(hashes, splits.astype(np.int64), most):
        first, second = lively[one], lively[other]
        if first.sha256 != second.sha256 and _correlation(first, second) >= _ALIKE:
            yield _leak("near-picture", "looks like", first, second)


def near_pairs(hashes: npt.NDArray[np.uint64], groups: npt.NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Pairs of different groups whose hashes differ in at most ``most`` bits, in order.

    If the bits are cut into ``most + 1`` bands, two such hashes agree in one of them, so only hashes with a band in
    common are compared.

    Example:
        >>> near_pairs(np.array([0, 7, 255, 1], dtype=np.uint64), np.array([0, 1, 1, 0]), 3)
        [(0, 1), (1, 3)]
    """
    edges = np.linspace(0, _BITS, most + 2).astype(np.uint64)
    found: set[tuple[int, int]] = set()
    for low, high in pairwise(edges):
        mask = np.uint64((1 << int(high - low)) - 1)
        band = (hashes >> low) & mask
        order = np.argsort(band, kind="stable")
        starts = np.flatnonzero(np.diff(band[order])) + 1
        for bucket in np.split(order, starts):
            if len(bucket) > 1:
                found.update(_compare(bucket, hashes, groups, most))
    return sorted(found)


def _compare(
    bucket: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64], groups: npt.NDArray[np.int64], most: int
) -> Iterator[tuple[int, int]]:
    bucket = np.sort(bucket)
    for start in range(0, len(bucket), _ROWS):  # in blocks, since a common band may hold many
        rows = bucket[start : start + _ROWS]
        differ = np.ascontiguousarray(hashes[rows][:, None] ^ hashes[bucket][None, :])
        bits = _ONES[differ.view(np.uint16).reshape(*differ.shape, 4)].sum(axis=-1)
        near = (bits <= most) & (groups[rows][:, None] != groups[bucket][None, :]) & (rows[:, None] < bucket[None, :])
        for row, column in zip(*np.nonzero(near), strict=True):
            yield int(rows[row]), int(bucket[column])


def _leak(kind: str, how: str, one: Look, other: Look) -> tuple[Finding, str]:
    loser, keeper = sorted((one, other), key=_rank)
    detail = f"in {loser.image.split}, {how} {keeper.image.image_id} in {keeper.image.split}"
    return Finding(kind, loser.image.image_id, detail), loser.image.image_id


def _rank(look: Look) -> tuple[int, str]:
    """Which split keeps a picture that two have: test sets stay whole, so that figures stay comparable.

    The name decides between two of a kind, so that every picture that they share goes from the same one.
    """
    split = look.image.split
    return (2 if split.startswith("test") else 0 if split in {"train", "restval"} else 1), split


def _correlation(one: Look, other: Look) -> float:
    return float(np.corrcoef(one.thumbnail.ravel(), other.thumbnail.ravel())[0, 1])
