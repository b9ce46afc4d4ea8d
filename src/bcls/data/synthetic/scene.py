"""Scenes: their vocabulary, the scene graph, spatial relations, and random sampling.

``vocabulary.json`` contains the categories, colours, sizes, backgrounds and relations with their words, and sentences,
``shapes.json`` the coordinates of the drawn objects, and ``palette.json`` their colours.

Relations are computed from the centres of the drawn boxes. With ``dx = x_second − x_first`` and
``dy = y_second − y_first`` (y grows downwards), both as fractions of the side of the image, "first R second" earns

==========  ================================  ================================
R           1 (holds)                         0.5 (partly)
==========  ================================  ================================
left of     dx ≥ 0.15                         0.05 ≤ dx < 0.15
right of    −dx ≥ 0.15                        0.05 ≤ −dx < 0.15
above       dy ≥ 0.2                          0.1 ≤ dy < 0.2
below       −dy ≥ 0.2                         0.1 ≤ −dy < 0.2
next to     dx² + dy² ≤ 0.4²                  0.4² < dx² + dy² ≤ 0.55²
==========  ================================  ================================

and 0 otherwise.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_choice, check_whole, fail

Floats = npt.NDArray[np.float64]
Item = TypeVar("Item")

MAX_OBJECTS = 4
_SCENE_STREAM = 0
_COUNT_WEIGHTS = (0.15, 0.35, 0.32, 0.18)
_TYPICAL_CATEGORY_WEIGHT = 8.0
_TYPICAL_COLOUR_WEIGHT = 3.0
_SIZE_WEIGHTS = (0.3, 0.4, 0.3)
# Largest share of an object's box that the boxes of other objects may overlap.
_MAX_OVERLAP = 0.25
_TRIES = 40


@dataclass(frozen=True, slots=True)
class Category:
    """A category of objects.

    In all lists of words the first word is the plain one, and the others are synonyms.

    Attributes:
        group: The super-category.
        words: Nouns.
        verbs: Verbs that fit and state no fact.
        colours: Typical colours, which are more frequent.
        width: Width of the drawn box, relative to the size of the object.
        height: Height of the drawn box, relative to the size of the object.
        flies: Whether it is drawn in the upper half of the image.
    """

    group: str
    words: list[str]
    verbs: list[str]
    colours: list[str]
    width: float = 1.0
    height: float = 1.0
    flies: bool = False


@dataclass(frozen=True, slots=True)
class Background:
    """A kind of background.

    Attributes:
        where: Phrases for the location of an object.
        over: Phrases for the location of a flying object.
        nouns: Phrases for the background itself.
        typical: Typical categories, which are more frequent.
    """

    where: list[str]
    over: list[str]
    nouns: list[str]
    typical: list[str]


_VOCABULARY: dict[str, Any] = json.loads((Path(__file__).parent / "vocabulary.json").read_text(encoding="utf-8"))
CATEGORIES = {name: Category(**one) for name, one in _VOCABULARY["categories"].items()}
BACKGROUNDS = {name: Background(**one) for name, one in _VOCABULARY["backgrounds"].items()}
#: Words for each colour.
COLOURS: dict[str, list[str]] = _VOCABULARY["colours"]
#: Phrases before the second object, and phrases that refer back to the object just named.
RELATIONS: dict[str, list[list[str]]] = _VOCABULARY["relations"]
#: Words for each size. "middle" has none: captions never state this size.
SIZES: dict[str, list[str]] = _VOCABULARY["sizes"]
#: Beginnings of sentences.
OPENINGS: list[str] = _VOCABULARY["openings"]
#: Sentences with gaps, by what they state. Those with location need a stated background: "A ball lies." is no caption.
SENTENCES: dict[str, list[str]] = _VOCABULARY["sentences"]
#: Pairs of names that earn partial credit for each other.
NEAR: dict[str, list[set[str]]] = {kind: [set(pair) for pair in pairs] for kind, pairs in _VOCABULARY["near"].items()}
# Side of an object as a fraction of the side of the image; multiplied by width and height of the category.
SIZE_SHARE: dict[str, float] = {"small": 0.19, "middle": 0.28, "large": 0.40}


@dataclass(frozen=True, slots=True)
class SceneObject:
    """An object of a scene.

    Attributes:
        category: A key of ``CATEGORIES``.
        colour: A key of ``COLOURS``.
        size: ``"small"``, ``"middle"`` or ``"large"``, relative to its category.
        x: Horizontal centre of its box, 0 at the left edge of the image and 1 at the right.
        y: Vertical centre of its box, 0 at the top edge and 1 at the bottom.
        mirrored: Whether it faces left.
    """

    category: str
    colour: str
    size: str
    x: float
    y: float
    mirrored: bool = False

    def __post_init__(self) -> None:
        check_choice("category", self.category, CATEGORIES)
        check_choice("colour", self.colour, COLOURS)
        check_choice("size", self.size, SIZES)
        for name, value in (("x", self.x), ("y", self.y)):
            if not 0.0 <= value <= 1.0:
                fail(name, "a number in [0, 1]", repr(value), "pass a fraction of the side of the image")

    @property
    def width(self) -> float:
        """Width of the box as a fraction of the side of the image."""
        return SIZE_SHARE[self.size] * CATEGORIES[self.category].width

    @property
    def height(self) -> float:
        """Height of the box as a fraction of the side of the image."""
        return SIZE_SHARE[self.size] * CATEGORIES[self.category].height


@dataclass(frozen=True, slots=True)
class Scene:
    """A scene graph: a background with one to four objects.

    Attributes:
        background: A key of ``BACKGROUNDS``.
        objects: The objects, in no particular order.
        seed: Seed of the random details of the drawing: noise, clouds, exact shades.

    Example:
        >>> scene = Scene("sea", (SceneObject("boat", "white", "large", 0.5, 0.6),))
        >>> round(scene.objects[0].width, 2)
        0.44
    """

    background: str
    objects: tuple[SceneObject, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("background", self.background, BACKGROUNDS)
        if not 1 <= len(self.objects) <= MAX_OBJECTS:
            fail("objects", f"1 to {MAX_OBJECTS} objects", len(self.objects), "add or remove objects")
        check_whole("seed", self.seed, least=0)


def sample_scene(seed: int, image: int) -> Scene:
    """Sample the scene of an image.

    Typical categories and colours are more frequent, so that scenes are similar in various degrees.

    Args:
        seed: Seed of the whole dataset.
        image: Index of the image.

    Returns:
        A scene that depends on these two numbers only.

    Example:
        >>> sample_scene(0, 3) == sample_scene(0, 3)
        True
    """
    rng = stream(seed, image, _SCENE_STREAM)
    background = pick(rng, tuple(BACKGROUNDS))
    count = pick(rng, (1, 2, 3, 4), _COUNT_WEIGHTS)
    objects: list[SceneObject] = []
    for _ in range(_TRIES):
        candidate = _sample_object(rng, background)
        if _fits(candidate, objects):
            objects.append(candidate)
        if len(objects) == count:
            break
    # A crowded scene may end with fewer objects than planned, but never without, as the first one always fits.
    return Scene(background, tuple(objects), seed=int(rng.integers(2**32)))


def _sample_object(rng: np.random.Generator, background: str) -> SceneObject:
    typical = BACKGROUNDS[background].typical
    weights = [_TYPICAL_CATEGORY_WEIGHT if name in typical else 1.0 for name in CATEGORIES]
    name = pick(rng, tuple(CATEGORIES), weights)
    category = CATEGORIES[name]
    weights = [_TYPICAL_COLOUR_WEIGHT if colour in category.colours else 1.0 for colour in COLOURS]
    colour = pick(rng, tuple(COLOURS), weights)
    size = pick(rng, tuple(SIZES), _SIZE_WEIGHTS)
    draft = SceneObject(name, colour, size, 0.5, 0.5)
    x = float(rng.uniform(draft.width / 2 + 0.02, 0.98 - draft.width / 2))
    if category.flies:
        top = draft.height / 2 + 0.02
        y = float(rng.uniform(top, max(top, 0.42)))
    else:
        # Objects on the ground have their lower edge below the horizon.
        bottom = float(rng.uniform(0.66, 0.97))
        y = max(bottom - draft.height / 2, draft.height / 2 + 0.02)
    return SceneObject(name, colour, size, round(x, 3), round(y, 3), mirrored=bool(rng.random() < 0.5))


def _fits(candidate: SceneObject, placed: list[SceneObject]) -> bool:
    """Return whether every object stays mostly visible with the candidate."""
    objects = [*placed, candidate]
    return all(
        sum(_overlap(one, other) for other in objects if other is not one) <= _MAX_OVERLAP * one.width * one.height
        for one in objects
    )


def _overlap(one: SceneObject, other: SceneObject) -> float:
    wide = (one.width + other.width) / 2 - abs(one.x - other.x)
    high = (one.height + other.height) / 2 - abs(one.y - other.y)
    # If one box contains the other, the overlap is the smaller box.
    wide = min(wide, one.width, other.width)
    high = min(high, one.height, other.height)
    return max(wide, 0.0) * max(high, 0.0)


def relation_credits(kind: str, dx: Floats, dy: Floats) -> Floats:
    """Return the credit of a relation for every pair of offsets, by the table above.

    Args:
        kind: A key of ``RELATIONS``.
        dx: ``x_second − x_first``.
        dy: ``y_second − y_first``, of the same shape.

    Returns:
        Values 0, 0.5 or 1 of that shape.
    """
    check_choice("kind", kind, RELATIONS)
    margin, holds, partly = {
        "left of": (dx, 0.15, 0.05),
        "right of": (-dx, 0.15, 0.05),
        "above": (dy, 0.2, 0.1),
        "below": (-dy, 0.2, 0.1),
        "next to": (-(dx * dx + dy * dy), -(0.4**2), -(0.55**2)),
    }[kind]
    # A relation that holds also holds partly, so the two halves add up to the credit.
    return 0.5 * (margin >= holds) + 0.5 * (margin >= partly)


def relations_that_hold(first: SceneObject, second: SceneObject) -> tuple[str, ...]:
    """Return the relations of the first object to the second that fully hold.

    Example:
        >>> dog = SceneObject("dog", "brown", "middle", 0.2, 0.7)
        >>> relations_that_hold(dog, SceneObject("tree", "green", "large", 0.5, 0.6))
        ('left of', 'next to')
    """
    dx, dy = np.array(second.x - first.x), np.array(second.y - first.y)
    return tuple(kind for kind in RELATIONS if relation_credits(kind, dx, dy) == 1.0)


def stream(seed: int, image: int, purpose: int) -> np.random.Generator:
    """Return the random generator for one image and one purpose.

    Each image has its own, so that it does not depend on the number of images, their order or the process.

    Example:
        >>> bool(stream(0, 7, 1).random() == stream(0, 7, 1).random())
        True
    """
    return np.random.default_rng([seed, image, purpose])


def pick(rng: np.random.Generator, items: Sequence[Item], weights: Sequence[float] | None = None) -> Item:
    """Return one of ``items`` with probabilities proportional to the weights (equal without weights).

    Example:
        >>> pick(stream(0, 0, 0), ["never", "always"], [0.0, 1.0])
        'always'
    """
    if weights is None:
        return items[int(rng.integers(len(items)))]
    # Generator.choice does the same, ten times slower for so few items.
    point = float(rng.random()) * sum(weights)
    for item, weight in zip(items, weights, strict=True):
        point -= weight
        if point < 0.0:
            return item
    return items[-1]
