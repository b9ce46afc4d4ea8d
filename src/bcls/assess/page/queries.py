"""Which queries a page shows, and what a model ranks first for them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bcls.evaluation import QueryRanks

Direction: TypeAlias = Literal["i2t", "t2i"]
DIRECTIONS: tuple[Direction, Direction] = ("i2t", "t2i")
#: How many results are shown, as in the figures of the paper: captions for an image, images for a caption.
SHOWN = {"i2t": 10, "t2i": 5}


@dataclass(frozen=True)
class Ranking:
    """What a model answers to one query."""

    direction: Direction
    """What asks for what: ``"i2t"`` or ``"t2i"``."""
    query: int
    """Row of the image, or column of the caption, that asks."""
    rank: int
    """Rank of the first correct item."""
    correct: int
    """That item."""
    items: tuple[int, ...]
    """The first items."""


def hardest(ranks: "QueryRanks", direction: Direction, count: int) -> list[int]:
    """Find the queries whose first correct item ranks worst; of equals the first, and no image without captions.

    Example:
        >>> from bcls.evaluation import QueryRanks
        >>> hardest(QueryRanks(np.array([2, 0, 9, 2]), np.array([1])), "i2t", 3)
        [2, 0, 3]
    """
    own: NDArray[np.int64] = getattr(ranks, direction)
    asked = np.flatnonzero(own)
    worst: list[int] = asked[np.argsort(-own[asked], kind="stable")][:count].tolist()
    return worst


def most_different(a: "QueryRanks", b: "QueryRanks", direction: Direction, count: int) -> list[int]:
    """Find the queries whose first correct items rank furthest apart in two models; none that rank alike.

    Example:
        >>> from bcls.evaluation import QueryRanks
        >>> some = np.array([1])
        >>> most_different(QueryRanks(np.array([2, 5, 9]), some), QueryRanks(np.array([4, 5, 1]), some), "i2t", 3)
        [2, 0]
    """
    gap = np.abs(getattr(a, direction) - getattr(b, direction))
    order = np.argsort(-gap, kind="stable")[:count]
    apart: list[int] = order[gap[order] > 0].tolist()
    return apart


def ranking(
    similarity: NDArray[Any], owner: NDArray[np.int64], ranks: "QueryRanks", direction: Direction, query: int
) -> Ranking:
    """Read the first items of one query, ties to the lower index.

    Args:
        similarity: ``(N, C)`` scores.
        owner: ``(C,)`` image of each caption.
        ranks: Of the same scores.
        direction: What asks for what.
        query: An image with captions, or a caption.
    """
    # Wide, for the negative of an unsigned number is another number.
    scores = np.asarray(similarity[query] if direction == "i2t" else similarity[:, query], dtype=np.float64)
    own = np.flatnonzero(owner == query) if direction == "i2t" else owner[query : query + 1]
    items = np.argsort(-scores, kind="stable")[: SHOWN[direction]]
    rank = int(getattr(ranks, direction)[query])
    return Ranking(direction, query, rank, int(own[np.argmax(scores[own])]), tuple(items.tolist()))
