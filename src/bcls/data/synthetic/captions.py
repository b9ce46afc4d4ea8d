"""Writes the captions of a scene: chooses which true facts to state, then how to say them."""

import numpy as np

from bcls.data.synthetic.chance import pick, stream
from bcls.data.synthetic.facts import Caption, Facts, Mention, Relation
from bcls.data.synthetic.phrases import sentence
from bcls.data.synthetic.relations import relations_that_hold
from bcls.data.synthetic.scene import Scene, SceneObject
from bcls.data.synthetic.vocabulary import CATEGORIES

CAPTIONS_PER_IMAGE = 5
CAPTION_STREAM = 1

# How many objects a caption speaks of, from none (the background alone) to three.
_MENTION_WEIGHTS = (0.06, 0.34, 0.42, 0.18)
_COLOUR_STATED = 0.7
_SIZE_STATED = 0.6
_BACKGROUND_STATED = 0.5
_RELATION_STATED = 0.7


def write_captions(scene: Scene, seed: int, image: int) -> tuple[Caption, ...]:
    """Return the captions of one scene, all different and all true of it.

    Args:
        scene: What the picture shows.
        seed: The seed of the whole dataset.
        image: The image's index.

    Returns:
        ``CAPTIONS_PER_IMAGE`` captions that depend on these arguments alone.

    Example:
        >>> scene = Scene("snow", (SceneObject("dog", "black", "large", 0.5, 0.7),))
        >>> len({caption.text for caption in write_captions(scene, seed=0, image=0)})
        5
    """
    rng = stream(seed, image, CAPTION_STREAM)
    # A dictionary keeps the order and drops repeats; even a lone object can be worded in dozens of ways.
    captions: dict[str, Caption] = {}
    while len(captions) < CAPTIONS_PER_IMAGE:
        facts = _choose_facts(rng, scene)
        text = sentence(rng, facts)
        captions.setdefault(text, Caption(text, image, facts))
    return tuple(captions.values())


def _choose_facts(rng: np.random.Generator, scene: Scene) -> Facts:
    count = pick(rng, (0, 1, 2, 3), _MENTION_WEIGHTS)
    if count == 0:
        return Facts(background=scene.background)
    chosen = _choose_objects(rng, scene, count)
    background = scene.background if rng.random() < _BACKGROUND_STATED else None
    mentions = tuple(_mention(rng, one) for one in chosen)
    relations: tuple[Relation, ...] = ()
    if len(chosen) > 1 and rng.random() < _RELATION_STATED:
        relations = tuple(Relation(0, kind, 1) for kind in _choose_relation(rng, chosen[0], chosen[1]))
    return Facts(mentions, relations, background)


def _choose_objects(rng: np.random.Generator, scene: Scene, count: int) -> list[SceneObject]:
    """Pick up to ``count`` objects of different categories: "a dog left of a dog" would tell nobody which is which."""
    chosen: dict[str, SceneObject] = {}
    for place in rng.permutation(len(scene.objects)):
        one = scene.objects[int(place)]
        chosen.setdefault(one.category, one)
    return list(chosen.values())[:count]


def _mention(rng: np.random.Generator, one: SceneObject) -> Mention:
    colour = one.colour if rng.random() < _COLOUR_STATED else None
    size = one.size if one.size != "middle" and rng.random() < _SIZE_STATED else None
    return Mention(one.category, colour, size)


def _choose_relation(rng: np.random.Generator, first: SceneObject, second: SceneObject) -> tuple[str, ...]:
    """Pick at most one relation that a person would think of: along the axis on which the two are further apart."""
    natural: tuple[str, ...] = ("left of", "right of", "next to")
    if abs(first.y - second.y) > abs(first.x - second.x):
        # A tower behind a house has the higher centre, yet nobody would call it above the house.
        upper = first if first.y < second.y else second
        natural = ("above", "below") if CATEGORIES[upper.category].flies else ("next to",)
    true = [kind for kind in relations_that_hold(first, second) if kind in natural]
    return (pick(rng, true),) if true else ()
