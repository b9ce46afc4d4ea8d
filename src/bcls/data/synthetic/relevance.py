r"""The true graded relevance of a caption to a picture: how much of what the caption says is true of it.

A caption states facts of five kinds: an object's category, its colour, its size, a relation between two of its
objects, and the background. Let its mentioned objects be :math:`m \in M`, and let :math:`\pi` assign them to
*different* objects of the scene, or to none. Then

.. math::

    r = \max_\pi \frac{1}{W} \Bigl[
        \sum_{m \in M} K_m \, (4 + 2\,[\text{colour stated}]\, C_m + 1\,[\text{size stated}]\, S_m)
        + \sum_{(a, \rho, b)} 2\, K_a K_b\, R_\rho(\pi(a), \pi(b)) + 2\,[\text{background stated}]\, B \Bigr]

where, with all credits from :mod:`bcls.data.synthetic.near_misses` and :mod:`bcls.data.synthetic.relations`,

* :math:`K_m` is the category credit of :math:`m` and :math:`\pi(m)`: 1 the same, 0.6 close, 0.3 the same
  super-category, 0 otherwise, and 0 where :math:`m` is assigned to none;
* :math:`C_m` is the colour credit: 1 the same, 0.5 a near colour, 0 otherwise;
* :math:`S_m` is the size credit: 1 the same, 0.5 where the scene's object is of middle size, 0 for the opposite;
* :math:`R_\rho` is the relation's credit for the positions drawn: 1 holds, 0.5 partly, 0 otherwise;
* :math:`B` is the background credit: 1 the same, 0.5 related, 0 otherwise;
* :math:`W` is the sum of the weights (4, 2, 1, 2, 2) of the facts stated, so the value for which every credit is 1.

Colour, size and relation are multiplied by the category credit: "a red dog" earns nothing for a red bus. The result
lies in [0, 1]. It is exactly 1 if and only if every stated fact holds of some one assignment; what the caption leaves
out costs nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import permutations

import numpy as np
import numpy.typing as npt

from bcls.data.synthetic import near_misses
from bcls.data.synthetic.facts import Caption, Facts, Mention
from bcls.data.synthetic.relations import relation_credits
from bcls.data.synthetic.scene import MAX_OBJECTS, Scene
from bcls.data.synthetic.vocabulary import BACKGROUNDS, CATEGORIES, COLOURS, RELATIONS, SIZES

Floats = npt.NDArray[np.float64]


def true_relevance(scenes: Sequence[Scene], captions: Sequence[Caption]) -> npt.NDArray[np.float32]:
    """Return the true relevance of every caption to every scene, by the formula above.

    Args:
        scenes: N scenes.
        captions: C captions, of these scenes or of any others.

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
            raise ValueError(f"`{name}` must not be empty, got none; pass those of `make_scenes`.")
    scorer = _Scorer(scenes)
    # Captions repeat what others say, and every repeat has the same column.
    columns = {facts: scorer.column(facts) for facts in {caption.facts for caption in captions}}
    return np.stack([columns[caption.facts] for caption in captions], axis=1)


class _Scorer:
    """The scenes as arrays, one row a scene, padded with empty places to four objects each.

    A mention put in an empty place earns nothing, which stands for a mention assigned to no object; as no credit is
    negative, assignments that leave mentions out while objects remain never win and need not be tried.
    """

    def __init__(self, scenes: Sequence[Scene]) -> None:
        self.category = _Lookup(
            CATEGORIES, near_misses.category_credit, [[o.category for o in s.objects] for s in scenes]
        )
        self.colour = _Lookup(COLOURS, near_misses.colour_credit, [[o.colour for o in s.objects] for s in scenes])
        self.size = _Lookup(SIZES, near_misses.size_credit, [[o.size for o in s.objects] for s in scenes])
        self.background = _Lookup(BACKGROUNDS, near_misses.background_credit, [[s.background] for s in scenes])
        places = np.zeros((len(scenes), MAX_OBJECTS, 2))
        for row, scene in enumerate(scenes):
            places[row, : len(scene.objects)] = [(one.x, one.y) for one in scene.objects]
        apart = places[:, None, :, :] - places[:, :, None, :]
        # Credit of each relation between every two objects of each scene: (N, 4, 4).
        self.related = {kind: relation_credits(kind, apart[..., 0], apart[..., 1]) for kind in RELATIONS}

    def column(self, facts: Facts) -> npt.NDArray[np.float32]:
        """Return the relevance of one caption to every scene, of shape (N,)."""
        weight = sum(_mention_weight(mention) for mention in facts.mentions)
        weight += near_misses.RELATION_WEIGHT * len(facts.relations)
        earned = self._best_assignment(facts)
        if facts.background is not None:
            weight += near_misses.BACKGROUND_WEIGHT
            earned = earned + near_misses.BACKGROUND_WEIGHT * self.background[facts.background][:, 0]
        return (earned / weight).astype(np.float32)

    def _best_assignment(self, facts: Facts) -> Floats:
        # Every way P to put the mentions in different places, tried at once for all scenes: arrays (N, P).
        ways = np.array(list(permutations(range(MAX_OBJECTS), len(facts.mentions))), dtype=np.int64)
        kinds = [self.category[mention.category] for mention in facts.mentions]
        earned = np.zeros((len(self.background.codes), len(ways)))
        for place, (mention, kind) in enumerate(zip(facts.mentions, kinds, strict=True)):
            earned += (kind * self._attributes(mention))[:, ways[:, place]]
        for relation in facts.relations:
            one, other = ways[:, relation.first], ways[:, relation.second]
            both = kinds[relation.first][:, one] * kinds[relation.second][:, other]
            earned += near_misses.RELATION_WEIGHT * both * self.related[relation.kind][:, one, other]
        best: Floats = earned.max(axis=1)
        return best

    def _attributes(self, mention: Mention) -> Floats:
        earned = np.full(self.category.codes.shape, float(near_misses.CATEGORY_WEIGHT))
        if mention.colour is not None:
            earned += near_misses.COLOUR_WEIGHT * self.colour[mention.colour]
        if mention.size is not None:
            earned += near_misses.SIZE_WEIGHT * self.size[mention.size]
        return earned


class _Lookup:
    """The credit of a stated name for every object of every scene; 0 for empty places."""

    def __init__(self, names: Iterable[str], credit: Callable[[str, str], float], seen: list[list[str]]) -> None:
        self.index = {name: code for code, name in enumerate(names)}
        # One more column than names, left at 0: the code of an empty place.
        self.table = np.zeros((len(self.index), len(self.index) + 1))
        for stated, row in self.index.items():
            self.table[row, :-1] = [credit(stated, name) for name in self.index]
        self.codes = np.full((len(seen), MAX_OBJECTS), len(self.index), dtype=np.int64)
        for row, found in enumerate(seen):
            self.codes[row, : len(found)] = [self.index[name] for name in found]

    def __getitem__(self, stated: str) -> Floats:
        credit: Floats = self.table[self.index[stated]][self.codes]
        return credit


def _mention_weight(mention: Mention) -> int:
    weight = near_misses.CATEGORY_WEIGHT
    weight += near_misses.COLOUR_WEIGHT * (mention.colour is not None)
    return weight + near_misses.SIZE_WEIGHT * (mention.size is not None)
