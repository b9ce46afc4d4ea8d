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

from collections.abc import Callable, Iterable, Sequence
from itertools import permutations

import numpy as np
import numpy.typing as npt

import bcls.data.synthetic.scene as world
from bcls._core.errors import fail
from bcls.data.synthetic.captions import Caption, Facts, Mention
from bcls.data.synthetic.scene import CATEGORIES, MAX_OBJECTS, Floats, Scene

# Weights are integers, so that a caption that is completely true scores exactly 1.
CATEGORY_WEIGHT = 4
COLOUR_WEIGHT = 2
SIZE_WEIGHT = 1
RELATION_WEIGHT = 2
BACKGROUND_WEIGHT = 2

_CLOSE_CATEGORIES = (
    {"dog", "cat"},
    {"car", "bus"},
    {"flower", "mushroom"},
    {"ball", "balloon"},
    {"kite", "balloon"},
    {"house", "tower"},
)
_NEAR_COLOURS = ({"red", "orange"}, {"orange", "yellow"}, {"orange", "brown"}, {"brown", "black"}, {"blue", "purple"})
_RELATED_BACKGROUNDS = ({"beach", "sea"}, {"beach", "desert"}, {"city", "road"}, {"meadow", "road"})


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
    """The scenes as arrays, one row per scene, padded with empty slots to four objects.

    A mention in an empty slot earns nothing, which stands for a mention that is assigned to no object. As credits are
    not negative, assignments that omit mentions while objects remain are never better and need not be tried.
    """

    def __init__(self, scenes: Sequence[Scene]) -> None:
        def objects(attribute: str) -> list[list[str]]:
            return [[getattr(one, attribute) for one in scene.objects] for scene in scenes]

        self.category = _CreditTable(CATEGORIES, category_credit, objects("category"))
        self.colour = _CreditTable(world.COLOURS, colour_credit, objects("colour"))
        self.size = _CreditTable(world.SIZES, size_credit, objects("size"))
        self.background = _CreditTable(world.BACKGROUNDS, background_credit, [[scene.background] for scene in scenes])
        centres = np.zeros((len(scenes), MAX_OBJECTS, 2))
        for row, scene in enumerate(scenes):
            centres[row, : len(scene.objects)] = [(one.x, one.y) for one in scene.objects]
        offsets = centres[:, None, :, :] - centres[:, :, None, :]
        # Credit of each relation between any two objects of each scene: (N, 4, 4).
        self.related = {
            kind: world.relation_credits(kind, offsets[..., 0], offsets[..., 1]) for kind in world.RELATIONS
        }

    def column(self, facts: Facts) -> npt.NDArray[np.float32]:
        """Return the relevance of one caption to every scene, of shape (N,)."""
        weight = RELATION_WEIGHT * len(facts.relations)
        for mention in facts.mentions:
            weight += CATEGORY_WEIGHT + COLOUR_WEIGHT * (mention.colour is not None)
            weight += SIZE_WEIGHT * (mention.size is not None)
        earned = self._best_assignment(facts)
        if facts.background is not None:
            weight += BACKGROUND_WEIGHT
            earned = earned + BACKGROUND_WEIGHT * self.background[facts.background][:, 0]
        return (earned / weight).astype(np.float32)

    def _best_assignment(self, facts: Facts) -> Floats:
        # All P assignments of the mentions to different slots, evaluated at once for all scenes: arrays (N, P).
        slots = np.array(list(permutations(range(MAX_OBJECTS), len(facts.mentions))), dtype=np.int64)
        categories = [self.category[mention.category] for mention in facts.mentions]
        earned = np.zeros((len(self.background.codes), len(slots)))
        for index, mention in enumerate(facts.mentions):
            earned += (categories[index] * self._attributes(mention))[:, slots[:, index]]
        for relation in facts.relations:
            one, other = slots[:, relation.first], slots[:, relation.second]
            both = categories[relation.first][:, one] * categories[relation.second][:, other]
            earned += RELATION_WEIGHT * both * self.related[relation.kind][:, one, other]
        best: Floats = earned.max(axis=1)
        return best

    def _attributes(self, mention: Mention) -> Floats:
        earned = np.full(self.category.codes.shape, float(CATEGORY_WEIGHT))
        if mention.colour is not None:
            earned += COLOUR_WEIGHT * self.colour[mention.colour]
        if mention.size is not None:
            earned += SIZE_WEIGHT * self.size[mention.size]
        return earned


class _CreditTable:
    """The credit of a stated name for every object of every scene; 0 for empty slots."""

    def __init__(self, names: Iterable[str], credit: Callable[[str, str], float], seen: list[list[str]]) -> None:
        self.index = {name: code for code, name in enumerate(names)}
        # The last column stays 0: it belongs to the code of an empty slot.
        self.table = np.zeros((len(self.index), len(self.index) + 1))
        for stated, row in self.index.items():
            self.table[row, :-1] = [credit(stated, name) for name in self.index]
        self.codes = np.full((len(seen), MAX_OBJECTS), len(self.index), dtype=np.int64)
        for row, found in enumerate(seen):
            self.codes[row, : len(found)] = [self.index[name] for name in found]

    def __getitem__(self, stated: str) -> Floats:
        credit: Floats = self.table[self.index[stated]][self.codes]
        return credit


def category_credit(stated: str, seen: str) -> float:
    """Return the credit for stating one category if another is drawn.

    Example:
        >>> [category_credit("dog", seen) for seen in ("dog", "cat", "fish", "car")]
        [1.0, 0.6, 0.3, 0.0]
    """
    if stated == seen:
        return 1.0
    if {stated, seen} in _CLOSE_CATEGORIES:
        return 0.6
    return 0.3 if CATEGORIES[stated].group == CATEGORIES[seen].group else 0.0


def colour_credit(stated: str, seen: str) -> float:
    """Return the credit for stating one colour if another is drawn.

    Example:
        >>> [colour_credit("red", seen) for seen in ("red", "orange", "blue")]
        [1.0, 0.5, 0.0]
    """
    return 1.0 if stated == seen else 0.5 if {stated, seen} in _NEAR_COLOURS else 0.0


def size_credit(stated: str, seen: str) -> float:
    """Return the credit for stating one size of an object that has another.

    Example:
        >>> [size_credit("large", seen) for seen in ("large", "middle", "small")]
        [1.0, 0.5, 0.0]
    """
    return 1.0 if stated == seen else 0.5 if "middle" in (stated, seen) else 0.0


def background_credit(stated: str, seen: str) -> float:
    """Return the credit for stating one background if another is drawn.

    Example:
        >>> [background_credit("beach", seen) for seen in ("beach", "sea", "room")]
        [1.0, 0.5, 0.0]
    """
    return 1.0 if stated == seen else 0.5 if {stated, seen} in _RELATED_BACKGROUNDS else 0.0
