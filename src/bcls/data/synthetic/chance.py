"""Random streams that depend on the seed and the image alone, and weighted picks from them."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


def stream(seed: int, image: int, purpose: int) -> np.random.Generator:
    """Return the generator for one image and one purpose.

    Each image has its own, so it is the same however many images are made, in whatever order or process.

    Example:
        >>> bool(stream(0, 7, 1).random() == stream(0, 7, 1).random())
        True
    """
    return np.random.default_rng([seed, image, purpose])


def pick(rng: np.random.Generator, items: Sequence[Item], weights: Sequence[float] | None = None) -> Item:
    """Return one of ``items``, each as likely as its weight (equally likely without weights).

    Example:
        >>> pick(stream(0, 0, 0), ["never", "always"], [0.0, 1.0])
        'always'
    """
    if weights is None:
        return items[int(rng.integers(len(items)))]
    # Generator.choice does the same, ten times slower on so few items.
    place = float(rng.random()) * sum(weights)
    for item, weight in zip(items, weights, strict=True):
        place -= weight
        if place < 0.0:
            return item
    return items[-1]
