"""Which captions form which batch: a pure function of captions, batch size, seed and epoch.

The position in the data is therefore two numbers, the epoch and the step, and a run can resume anywhere.
"""

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_whole

Indices = npt.NDArray[np.int64]


def plan_epoch(
    image_of_caption: Indices, batch: int, seed: int, epoch: int, *, distinct: bool = True, least: int = 2
) -> list[Indices]:
    """Assign the captions to batches at random; every caption is used once.

    An epoch has C / ``batch`` batches, rounded up, and their sizes differ by one caption at most, so there is no short
    last one. With ``distinct`` the captions of an image go to different batches. An image with more captions than there
    are batches uses as many as there are, and others in the next epoch; where one image has many more captions than the
    rest, the number of batches follows from the captions that are used.

    Args:
        image_of_caption: ``(C,)`` index of each caption's image.
        batch: Captions in a batch, of all processes together.
        seed: Seed of the run.
        epoch: Epoch, from 0.
        distinct: No image twice in a batch.
        least: Smallest batch that is kept; smaller ones occur only with very few captions.

    Returns:
        Indices of captions, one array for each batch.

    Example:
        >>> batches = plan_epoch(np.array([0, 0, 1, 1, 2, 2]), batch=3, seed=1, epoch=0)
        >>> [sorted((one // 2).tolist()) for one in batches]
        [[0, 1, 2], [0, 1, 2]]
    """
    check_whole("batch", batch, least=2)
    draw = np.random.default_rng([seed, epoch])
    order = draw.permutation(len(image_of_caption))
    if distinct:
        batches = _deal(order, image_of_caption[order], batch, draw)
    else:
        batches = np.array_split(order, max(1, -(-len(order) // batch)))
    return [one for one in batches if len(one) >= least]


def sizes_of_ranks(size: int, ranks: int) -> list[int]:
    """How many items of a batch each process encodes: consecutive parts of nearly equal size.

    Example:
        >>> sizes_of_ranks(5, 2)
        [3, 2]
    """
    return [size // ranks + (rank < size % ranks) for rank in range(ranks)]


def share_of_rank(batch: Indices, rank: int, ranks: int) -> Indices:
    """The part of a batch that one process encodes.

    Example:
        >>> [share_of_rank(np.arange(5), rank, 2).tolist() for rank in range(2)]
        [[0, 1, 2], [3, 4]]
    """
    return np.array_split(batch, ranks)[rank]


def _deal(order: Indices, owner: Indices, batch: int, draw: np.random.Generator) -> list[Indices]:
    """Lay the captions in a row, those of an image side by side, and deal the row out, each round in a new order.

    A round gives each of the K batches one caption. At most K captions of an image are side by side, so two of them can
    meet in one batch only at the border of two rounds, where the second round's order is corrected.
    """
    images = draw.permutation(int(owner.max(initial=0)) + 1)[owner]  # images in random order, too
    together = np.argsort(images, kind="stable")
    row, images = order[together], images[together]
    turn = np.arange(len(images)) - np.searchsorted(images, images)
    most = min(batch, len(np.unique(images)))
    count = -(-len(row) // most) if most else 0
    while (kept := int((turn < count).sum())) and -(-kept // most) < count:
        count = -(-kept // most)
    row, images = row[turn < count], images[turn < count]
    batch_of = np.empty(len(row), dtype=np.int64)
    for start in range(0, len(row), max(1, count)):
        deal = draw.permutation(count)
        first, end = np.searchsorted(images, images[start]), np.searchsorted(images, images[start], side="right")
        if first < start:
            _resolve_clashes(deal, int(end) - start, batch_of[first:start])
        batch_of[start : start + count] = deal[: len(row) - start]
    by_batch = np.argsort(batch_of, kind="stable")
    return np.split(row[by_batch], np.cumsum(np.bincount(batch_of, minlength=count))[:-1])


def _resolve_clashes(deal: Indices, here: int, taken: Indices) -> None:
    """Swap those of the first ``here`` batches of a round that the image already has with free ones after them."""
    clashes = [place for place in range(here) if deal[place] in taken]
    free = [place for place in range(here, len(deal)) if deal[place] not in taken]
    for place, other in zip(clashes, free, strict=False):
        deal[[place, other]] = deal[[other, place]]
