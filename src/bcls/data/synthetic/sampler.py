"""Draws scene graphs at random, with the correlations that make scenes alike by degrees."""

import numpy as np

from bcls.data.synthetic.chance import pick, stream
from bcls.data.synthetic.scene import Scene, SceneObject
from bcls.data.synthetic.vocabulary import BACKGROUNDS, CATEGORIES, COLOURS, SIZES

SCENE_STREAM = 0

_COUNT_WEIGHTS = (0.15, 0.35, 0.32, 0.18)
_TYPICAL_CATEGORY_WEIGHT = 8.0
_TYPICAL_COLOUR_WEIGHT = 3.0
_SIZE_WEIGHTS = (0.3, 0.4, 0.3)
# At most this share of an object's box may lie under or over the boxes of the others.
_MOST_OVERLAP = 0.25
_TRIES = 40


def sample_scene(seed: int, image: int) -> Scene:
    """Return the scene of one image.

    Args:
        seed: The seed of the whole dataset.
        image: The image's index.

    Returns:
        A scene that depends on these two numbers alone.

    Example:
        >>> sample_scene(0, 3) == sample_scene(0, 3)
        True
    """
    rng = stream(seed, image, SCENE_STREAM)
    background = pick(rng, tuple(BACKGROUNDS))
    count = pick(rng, (1, 2, 3, 4), _COUNT_WEIGHTS)
    objects: list[SceneObject] = []
    for _ in range(_TRIES):
        candidate = _sample_object(rng, background)
        if _fits(candidate, objects):
            objects.append(candidate)
        if len(objects) == count:
            break
    # A crowded scene may run out of tries: it then has fewer objects, never none, as the first always fits.
    return Scene(background, tuple(objects), seed=int(rng.integers(2**32)))


def _sample_object(rng: np.random.Generator, background: str) -> SceneObject:
    typical = BACKGROUNDS[background].typical
    weights = [_TYPICAL_CATEGORY_WEIGHT if name in typical else 1.0 for name in CATEGORIES]
    name = pick(rng, tuple(CATEGORIES), weights)
    category = CATEGORIES[name]
    colours = [_TYPICAL_COLOUR_WEIGHT if colour in category.colours else 1.0 for colour in COLOURS]
    colour = pick(rng, tuple(COLOURS), colours)
    size = pick(rng, tuple(SIZES), _SIZE_WEIGHTS)
    draft = SceneObject(name, colour, size, 0.5, 0.5)
    x = _between(rng, draft.width / 2 + 0.02, 0.98 - draft.width / 2)
    if category.flies:
        top = draft.height / 2 + 0.02
        y = _between(rng, top, max(top, 0.42))
    else:
        # Things on the ground stand with their feet below the horizon.
        foot = _between(rng, 0.66, 0.97)
        y = max(foot - draft.height / 2, draft.height / 2 + 0.02)
    return SceneObject(name, colour, size, round(x, 3), round(y, 3), mirrored=bool(rng.random() < 0.5))


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(rng.random())


def _fits(candidate: SceneObject, placed: list[SceneObject]) -> bool:
    """Whether every object stays mostly visible once the candidate is added."""
    everything = [*placed, candidate]
    for one in everything:
        covered = sum(_overlap(one, other) for other in everything if other is not one)
        if covered > _MOST_OVERLAP * one.width * one.height:
            return False
    return True


def _overlap(one: SceneObject, other: SceneObject) -> float:
    wide = (one.width + other.width) / 2 - abs(one.x - other.x)
    high = (one.height + other.height) / 2 - abs(one.y - other.y)
    # Boxes inside one another overlap by no more than the smaller of them.
    wide = min(wide, one.width, other.width)
    high = min(high, one.height, other.height)
    return max(wide, 0.0) * max(high, 0.0)
