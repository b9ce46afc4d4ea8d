"""Captions of scenes: the facts that they state, and their wording in English."""

from dataclasses import dataclass

import numpy as np

import bcls.data.synthetic.scene as world
from bcls._core.errors import check_choice, fail
from bcls.data.synthetic.scene import BACKGROUNDS, CATEGORIES, COLOURS, RELATIONS, Scene, SceneObject, pick

Rng = np.random.Generator

CAPTIONS_PER_IMAGE = 5
_CAPTION_STREAM = 1
# Probabilities of mentioning no object (the background alone), one, two or three.
_MENTION_WEIGHTS = (0.06, 0.34, 0.42, 0.18)
_COLOUR_STATED = 0.7
_SIZE_STATED = 0.6
_BACKGROUND_STATED = 0.5
_RELATION_STATED = 0.7


@dataclass(frozen=True, slots=True)
class Mention:
    """An object that a caption mentions; ``None`` for a colour or size that is not stated."""

    category: str
    colour: str | None = None
    size: str | None = None

    def __post_init__(self) -> None:
        check_choice("category", self.category, CATEGORIES)
        if self.colour is not None:
            check_choice("colour", self.colour, COLOURS)
        if self.size is not None:
            check_choice("size", self.size, ("small", "large"))


@dataclass(frozen=True, slots=True)
class Relation:
    """The statement that ``mentions[first]`` has relation ``kind`` to ``mentions[second]``."""

    first: int
    kind: str
    second: int

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, RELATIONS)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that a caption states, as structure, so that they can be evaluated without parsing English.

    Attributes:
        mentions: The mentioned objects, at most four.
        relations: Spatial relations between them.
        background: The stated background, if any.

    Example:
        >>> Facts((Mention("dog"), Mention("tree")), (Relation(0, "left of", 1),)).background is None
        True
    """

    mentions: tuple[Mention, ...] = ()
    relations: tuple[Relation, ...] = ()
    background: str | None = None

    def __post_init__(self) -> None:
        count = len(self.mentions)
        if count > world.MAX_OBJECTS:
            fail("mentions", f"at most {world.MAX_OBJECTS} objects", count, "mention fewer")
        if not count and self.background is None:
            fail("mentions", "at least one fact", "no mentions and no background", "state one")
        if self.background is not None:
            check_choice("background", self.background, BACKGROUNDS)
        for relation in self.relations:
            ends = {relation.first, relation.second}
            if len(ends) < 2 or not ends <= set(range(count)):
                got = f"{relation.first} and {relation.second}"
                fail("relations", f"indices of two of the {count} mentions", got, "use their positions in `mentions`")


@dataclass(frozen=True, slots=True)
class Caption:
    """A caption of an image.

    Attributes:
        text: The sentence.
        image: Index of the image that it was written for.
        facts: The facts that it states.
    """

    text: str
    image: int
    facts: Facts


def write_captions(scene: Scene, seed: int, image: int) -> tuple[Caption, ...]:
    """Write the captions of a scene, all different and all true.

    Args:
        scene: The scene.
        seed: Seed of the whole dataset.
        image: Index of the image.

    Returns:
        ``CAPTIONS_PER_IMAGE`` captions that depend on these arguments only.

    Example:
        >>> scene = Scene("snow", (SceneObject("dog", "black", "large", 0.5, 0.7),))
        >>> len({caption.text for caption in write_captions(scene, seed=0, image=0)})
        5
    """
    rng = world.stream(seed, image, _CAPTION_STREAM)
    # Repeats are dropped; even a single object can be described in dozens of ways.
    captions: dict[str, Caption] = {}
    while len(captions) < CAPTIONS_PER_IMAGE:
        facts = _choose_facts(rng, scene)
        text = sentence(rng, facts)
        captions.setdefault(text, Caption(text, image, facts))
    return tuple(captions.values())


def _choose_facts(rng: Rng, scene: Scene) -> Facts:
    count = pick(rng, (0, 1, 2, 3), _MENTION_WEIGHTS)
    if count == 0:
        return Facts(background=scene.background)
    # Objects of different categories, since "a dog left of a dog" would be ambiguous.
    by_category: dict[str, SceneObject] = {}
    for index in rng.permutation(len(scene.objects)):
        one = scene.objects[int(index)]
        by_category.setdefault(one.category, one)
    chosen = list(by_category.values())[:count]
    background = scene.background if rng.random() < _BACKGROUND_STATED else None
    mentions = tuple(_mention(rng, one) for one in chosen)
    relations: tuple[Relation, ...] = ()
    if len(chosen) > 1 and rng.random() < _RELATION_STATED:
        relations = _choose_relation(rng, chosen[0], chosen[1])
    return Facts(mentions, relations, background)


def _mention(rng: Rng, one: SceneObject) -> Mention:
    colour = one.colour if rng.random() < _COLOUR_STATED else None
    size = one.size if one.size != "middle" and rng.random() < _SIZE_STATED else None
    return Mention(one.category, colour, size)


def _choose_relation(rng: Rng, first: SceneObject, second: SceneObject) -> tuple[Relation, ...]:
    """Choose at most one natural relation: along the axis on which the two objects are further apart."""
    natural: tuple[str, ...] = ("left of", "right of", "next to")
    if abs(first.y - second.y) > abs(first.x - second.x):
        # A tower behind a house has the higher centre, but is not described as above the house.
        upper = first if first.y < second.y else second
        natural = ("above", "below") if CATEGORIES[upper.category].flies else ("next to",)
    true = [kind for kind in world.relations_that_hold(first, second) if kind in natural]
    return (Relation(0, pick(rng, true), 1),) if true else ()


def sentence(rng: Rng, facts: Facts) -> str:
    """Write one of the many sentences that state exactly these facts.

    Args:
        rng: Source of the choice of words.
        facts: The facts; with more than two mentions, only the first two may be related.

    Returns:
        A sentence with a capital letter and a full stop.

    Example:
        >>> rng = np.random.default_rng(4)
        >>> sentence(rng, Facts((Mention("dog", colour="orange"),), background="sea"))
        '...orange...'
    """
    if not facts.mentions:
        words = _describe_background(rng, facts)
    elif len(facts.mentions) == 1:
        words = _describe_one(rng, facts)
    elif facts.relations:
        words = _describe_related(rng, facts)
    else:
        words = _describe_several(rng, facts)
    return words[0].upper() + words[1:] + "."


def noun_phrase(rng: Rng, mention: Mention) -> str:
    """Return an article, the stated size and colour, and a noun.

    Example:
        >>> noun_phrase(np.random.default_rng(0), Mention("fish", "orange"))
        'an orange fish'
    """
    words = [_word(rng, CATEGORIES[mention.category].words)]
    if mention.colour is not None:
        words.insert(0, _word(rng, COLOURS[mention.colour]))
    if mention.size is not None:
        words.insert(0, _word(rng, world.SIZES[mention.size]))
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def _word(rng: Rng, words: list[str]) -> str:
    # The plain word is the most frequent, so that captions of different scenes often have the same wording.
    return pick(rng, words, [2.0] + [1.0] * (len(words) - 1))


def _describe_background(rng: Rng, facts: Facts) -> str:
    noun = pick(rng, BACKGROUNDS[facts.background or ""].nouns)
    return pick(rng, world.SENTENCES["background"]).format(noun=noun)


def _describe_one(rng: Rng, facts: Facts) -> str:
    category = CATEGORIES[facts.mentions[0].category]
    words = {"thing": noun_phrase(rng, facts.mentions[0]), "verb": pick(rng, category.verbs)}
    words |= _location_and_opening(rng, facts, category.flies)
    if facts.background is not None:
        words["noun"] = pick(rng, BACKGROUNDS[facts.background].nouns)
    return _fill_sentence(rng, "one", words)


def _describe_several(rng: Rng, facts: Facts) -> str:
    first, *others = [noun_phrase(rng, mention) for mention in facts.mentions]
    listed = ", ".join([first, *others[:-1]]) + " and " + others[-1]
    words = {"listed": listed, "first": first, "others": " and ".join(others)}
    return _fill_sentence(rng, "several", words | _location_and_opening(rng, facts))


def _describe_related(rng: Rng, facts: Facts) -> str:
    relation = facts.relations[0]
    first, second = facts.mentions[relation.first], facts.mentions[relation.second]
    words = {"one": noun_phrase(rng, first), "other": noun_phrase(rng, second)}
    words["before"], words["back"] = (pick(rng, phrases) for phrases in RELATIONS[relation.kind])
    words["verb"] = pick(rng, CATEGORIES[first.category].verbs)
    related = _fill_sentence(rng, "related", words | _location_and_opening(rng, facts))
    rest = [noun_phrase(rng, mention) for mention in facts.mentions[2:]]
    return related if not rest else f"{related}, and also " + " and ".join(rest)


def _location_and_opening(rng: Rng, facts: Facts, flies: bool = False) -> dict[str, str]:
    """Choose ``where``, "in the meadow" or similar, or nothing if the background is not stated, and the opening."""
    where = ""
    if facts.background is not None:
        background = BACKGROUNDS[facts.background]
        where = pick(rng, background.over if flies else background.where)
    return {"where": where, "location": where and f" {where}", "opening": pick(rng, world.OPENINGS)}


def _fill_sentence(rng: Rng, kind: str, words: dict[str, str]) -> str:
    sentences = world.SENTENCES[kind] + (world.SENTENCES[f"{kind} with location"] if words["where"] else [])
    return pick(rng, sentences).format(**words)
