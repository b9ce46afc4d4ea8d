r"""The true graded relevance of a caption to a scene: the share of its statements that are true of the scene.

A caption states facts of five kinds: an object's category, its colour, its size, a relation between two of its
objects, and the background. Let its mentioned objects be :math:`m \in M`, and let :math:`\pi` assign them to
*different* objects of the scene, or to none. Then

.. math::

    r = \max_\pi \frac{1}{W} \Bigl[
        \sum_{m \in M} K_m \, (4 + 2\,[\text{colour stated}]\, C_m + 1\,[\text{size stated}]\, S_m)
        + \sum_{(a, \rho, b)} 2\, K_a K_b\, R_\rho(\pi(a), \pi(b)) + 2\,[\text{background stated}]\, B \Bigr]

where

* :math:`K_m` is the category credit of :math:`m` and :math:`\pi(m)`: 1 the same, 0.6 close, 0.3 the same
  super-category, 0 otherwise, and 0 if :math:`m` is assigned to none;
* :math:`C_m` is the colour credit: 1 the same, 0.5 a near colour, 0 otherwise;
* :math:`S_m` is the size credit: 1 the same, 0.5 if the scene's object is of middle size, 0 for the opposite;
* :math:`R_\rho` is the credit of the relation for the drawn positions (see :mod:`bcls.data.synthetic.scene`): 1 holds,
  0.5 partly, 0 otherwise;
* :math:`B` is the background credit: 1 the same, 0.5 related, 0 otherwise;
* :math:`W` is the sum of the weights (4, 2, 1, 2, 2) of the stated facts, which is the value if every credit is 1.

Colour, size and relation are multiplied by the category credit: "a red dog" earns nothing for a red bus. The result
lies in [0, 1]. It is exactly 1 if and only if every stated fact holds for one assignment; facts that the caption does
not state cost nothing. The credits were chosen by hand. All are symmetric, and 1 only between a name and itself.
"""

from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

import bcls.data.synthetic.scene as world
from bcls._core.errors import fail
from bcls.data.synthetic.captions import Caption, Facts
from bcls.data.synthetic.scene import CATEGORIES, MAX_OBJECTS, Floats, Scene

# Weights are integers, so that a caption that is completely true scores exactly 1.
CATEGORY_WEIGHT = 4
COLOUR_WEIGHT = 2
SIZE_WEIGHT = 1
RELATION_WEIGHT = 2
BACKGROUND_WEIGHT = 2


def true_relevance(scenes: Sequence[Scene], captions: Sequence[Caption]) -> npt.NDArray[np.float32]:
    """Compute the true relevance of every caption to every scene, by the formula above.

    Args:
        scenes: N scenes.
        captions: C captions, of these scenes or of others.

    Returns:
        Array (N, C) of values in [0, 1].

    Raises:
        ValueError: There is no scene or no caption.

    Example:
        >>> from bcls.data.synthetic import make_scenes
        >>> data = make_scenes(20, seed=0)
        >>> relevance = true_relevance(data.scenes, data.captions)
        >>> relevance.shape, bool((relevance[data.image_of_caption, range(100)] == 1).all())
        ((20, 100), True)
    """
    for name, given in (("scenes", scenes), ("captions", captions)):
        if len(given) == 0:
            fail(name, "at least one", "none", "pass those of `make_scenes`")
    scorer = _Scorer(scenes)
    # Captions with the same facts have the same column.
    columns = {facts: scorer.column(facts) for facts in {caption.facts for caption in captions}}
    return np.stack([columns[caption.facts] for caption in captions], axis=1)


class _Scorer:
    """Credits of every name that a caption may state, for all scenes at once, padded with empty slots to four objects.

    A mention in an empty slot earns nothing, which stands for a mention that is assigned to no object. As credits are
    not negative, assignments that omit mentions while objects remain are never better and need not be tried.
    """

    def __init__(self, scenes: Sequence[Scene]) -> None:
        def table(kind: str, names: Iterable[str], attribute: str) -> dict[str, Floats]:
            seen = [[getattr(one, attribute) for one in scene.objects] for scene in scenes]
            return {stated: _padded([[credit(kind, stated, name) for name in row] for row in seen]) for stated in names}

        self.category = table("categories", world.CATEGORIES, "category")
        self.colour = table("colours", world.COLOURS, "colour")
        self.size = table("sizes", world.SIZES, "size")
        self.background = {
            stated: np.array([credit("backgrounds", stated, scene.background) for scene in scenes])
            for stated in world.BACKGROUNDS
        }
        x, y = (_padded([[getattr(one, axis) for one in scene.objects] for scene in scenes]) for axis in "xy")
        dx, dy = x[:, None, :] - x[:, :, None], y[:, None, :] - y[:, :, None]
        # Credit of each relation between any two objects of each scene: (N, 4, 4).
        self.related = {kind: world.relation_credits(kind, dx, dy) for kind in world.RELATIONS}

    def column(self, facts: Facts) -> npt.NDArray[np.float32]:
        """Return the relevance of one caption to every scene, of shape (N,)."""
        weight = RELATION_WEIGHT * len(facts.relations)
        # All P assignments of the mentions to different slots, evaluated at once for all scenes: arrays (N, P).
        slots = np.array(list(permutations(range(MAX_OBJECTS), len(facts.mentions))), dtype=np.int64)
        categories = [self.category[mention.category] for mention in facts.mentions]
        earned: Floats = np.zeros((1, len(slots)))
        for index, mention in enumerate(facts.mentions):
            credit: Any = CATEGORY_WEIGHT
            weight += CATEGORY_WEIGHT
            if mention.colour is not None:
                credit = credit + COLOUR_WEIGHT * self.colour[mention.colour]
                weight += COLOUR_WEIGHT
            if mention.size is not None:
                credit = credit + SIZE_WEIGHT * self.size[mention.size]
                weight += SIZE_WEIGHT
            earned = earned + (categories[index] * credit)[:, slots[:, index]]
        for relation in facts.relations:
            one, other = slots[:, relation.first], slots[:, relation.second]
            both = categories[relation.first][:, one] * categories[relation.second][:, other]
            earned = earned + RELATION_WEIGHT * both * self.related[relation.kind][:, one, other]
        best: Floats = earned.max(axis=1)
        if facts.background is not None:
            best = best + BACKGROUND_WEIGHT * self.background[facts.background]
            weight += BACKGROUND_WEIGHT
        return (best / weight).astype(np.float32)


def _padded(rows: list[list[float]]) -> Floats:
    return np.array([row + [0.0] * (MAX_OBJECTS - len(row)) for row in rows])


def credit(kind: str, stated: str, seen: str) -> float:
    """Return the credit for stating one name if another is drawn.

    Args:
        kind: ``"categories"``, ``"colours"``, ``"sizes"`` or ``"backgrounds"``.
        stated: The name in the caption.
        seen: The name in the scene.

    Example:
        >>> [credit("categories", "dog", seen) for seen in ("dog", "cat", "fish", "car")]
        [1.0, 0.6, 0.3, 0.0]
        >>> [credit("colours", "red", seen) for seen in ("red", "orange", "blue")]
        [1.0, 0.5, 0.0]
        >>> [credit("sizes", "large", seen) for seen in ("large", "middle", "small")]
        [1.0, 0.5, 0.0]
        >>> [credit("backgrounds", "beach", seen) for seen in ("beach", "sea", "room")]
        [1.0, 0.5, 0.0]
    """
    if stated == seen:
        return 1.0
    near = {stated, seen} in world.NEAR[kind]
    if kind != "categories":
        return 0.5 * near
    return 0.6 if near else 0.3 * (CATEGORIES[stated].group == CATEGORIES[seen].group)
