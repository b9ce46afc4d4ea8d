"""Which captions make which batch: a pure function of captions, batch size, seed and epoch.

So the position in the data is two numbers, the epoch and the step, and a run can go on anywhere.
"""

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_whole

Numbers = npt.NDArray[np.int64]


def plan_epoch(
    image_of_caption: Numbers, batch: int, seed: int, epoch: int, *, distinct: bool = True, least: int = 2
) -> list[Numbers]:
    """Deal the captions out to batches at random; every caption comes once.

    An epoch has C / ``batch`` batches, rounded up, and they differ in size by one caption at most, so that there is no
    short last one. With ``distinct`` the captions of an image go to different batches. An image with more captions than
    there are batches shows as many as there are, others in the next epoch; where an image has so many more than the
    rest, the number of batches follows what is shown. See :func:`left_out`.

    Args:
        image_of_caption: ``(C,)`` number of each caption's image.
        batch: Captions in a batch, of all processes together.
        seed: Of the run.
        epoch: From 0.
        distinct: No image twice in a batch.
        least: Smallest batch that is kept; only a handful of captions makes smaller ones.

    Returns:
        Numbers of captions, an array for each batch.

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


def left_out(batches: list[Numbers], captions: int) -> int:
    """How many captions an epoch does not visit."""
    return captions - sum(len(one) for one in batches)


def share_of_rank(batch: Numbers, rank: int, ranks: int) -> slice:
    """The part of a batch that one process encodes: consecutive, of nearly equal size.

    Example:
        >>> [share_of_rank(np.arange(5), rank, 2) for rank in range(2)]
        [slice(0, 3, None), slice(3, 5, None)]
    """
    sizes = sizes_of_ranks(len(batch), ranks)
    start = sum(sizes[:rank])
    return slice(start, start + sizes[rank])


def sizes_of_ranks(size: int, ranks: int) -> list[int]:
    """How many items of a batch each process has."""
    return [size // ranks + (rank < size % ranks) for rank in range(ranks)]


def _deal(order: Numbers, owner: Numbers, batch: int, draw: np.random.Generator) -> list[Numbers]:
    """Lay the captions in a row, those of an image side by side, and deal the row out, in each round in a new order.

    A round gives each of the K batches one caption. At most K captions of an image are side by side, so they meet in
    one batch only where two rounds meet, and there the second round's order is mended.
    """
    images = draw.permutation(int(owner.max(initial=0)) + 1)[owner]  # in random order, too
    together = np.argsort(images, kind="stable")
    row, images = order[together], images[together]
    turn = np.arange(len(images)) - np.searchsorted(images, images)
    most = min(batch, len(np.unique(images)))
    count = -(-len(row) // most) if most else 0
    while (kept := int((turn < count).sum())) and -(-kept // most) < count:
        count = -(-kept // most)
    row, images = row[turn < count], images[turn < count]
    places = np.empty(len(row), dtype=np.int64)
    for start in range(0, len(row), max(1, count)):
        deal = draw.permutation(count)
        first, end = np.searchsorted(images, images[start]), np.searchsorted(images, images[start], side="right")
        if first < start:
            _mend(deal, int(end) - start, places[first:start])
        places[start : start + count] = deal[: len(row) - start]
    by_batch = np.argsort(places, kind="stable")
    return np.split(row[by_batch], np.cumsum(np.bincount(places, minlength=count))[:-1])


def _mend(deal: Numbers, here: int, taken: Numbers) -> None:
    """Exchange those of the first ``here`` batches of a round that the image already has with free ones behind them."""
    clashes = [place for place in range(here) if deal[place] in taken]
    free = [place for place in range(here, len(deal)) if deal[place] not in taken]
    for place, other in zip(clashes, free, strict=False):
        deal[[place, other]] = deal[[other, place]]
