"""Turns facts into English sentences, in many wordings of the same meaning."""

import numpy as np

from bcls.data.synthetic.chance import pick
from bcls.data.synthetic.facts import Facts, Mention
from bcls.data.synthetic.vocabulary import BACKGROUNDS, CATEGORIES, COLOURS, RELATIONS, SIZES

Rng = np.random.Generator

_OPENINGS = ("", "", "there is ", "a photo of ", "a picture of ", "we see ", "this image shows ")


def sentence(rng: Rng, facts: Facts) -> str:
    """Return one of the many sentences that state exactly these facts.

    Args:
        rng: Where the choice of words comes from.
        facts: What to say; of more than two mentions, only the first two may be related.

    Returns:
        A sentence with a capital and a full stop.

    Example:
        >>> rng = np.random.default_rng(4)
        >>> sentence(rng, Facts((Mention("dog", colour="orange"),), background="sea"))
        '...orange...'
    """
    if not facts.mentions:
        words = _of_place(rng, facts)
    elif len(facts.mentions) == 1:
        words = _of_one(rng, facts)
    elif facts.relations:
        words = _of_related(rng, facts)
    else:
        words = _of_several(rng, facts)
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
        words.insert(0, _word(rng, SIZES[mention.size]))
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def _word(rng: Rng, words: tuple[str, ...]) -> str:
    # The plain word is the commonest, so that captions of different scenes often agree word for word.
    return pick(rng, words, [2.0] + [1.0] * (len(words) - 1))


def _place(rng: Rng, facts: Facts, flies: bool = False) -> str:
    """Return " in the meadow" or the like, or nothing where the background is not stated."""
    if facts.background is None:
        return ""
    background = BACKGROUNDS[facts.background]
    return " " + pick(rng, background.over if flies else background.where)


def _of_place(rng: Rng, facts: Facts) -> str:
    noun = pick(rng, BACKGROUNDS[facts.background or ""].nouns)
    return pick(rng, (f"a photo of {noun}", f"a view of {noun}", f"this image shows {noun}", f"a scene with {noun}"))


def _of_one(rng: Rng, facts: Facts) -> str:
    mention = facts.mentions[0]
    category = CATEGORIES[mention.category]
    thing, verb = noun_phrase(rng, mention), pick(rng, category.verbs)
    place = _place(rng, facts, category.flies)
    forms = [
        f"{pick(rng, _OPENINGS)}{thing}{place}",
        f"{thing} can be seen{place}",
    ]
    if facts.background is not None:
        noun = pick(rng, BACKGROUNDS[facts.background].nouns)
        # "A ball lies" wants a place to lie in, so verbs come only with one.
        forms += [
            f"{thing} {verb}{place}",
            f"{place.strip()}, {thing} {verb}",
            f"{thing} with {noun} in the background",
        ]
    return pick(rng, forms)


def _of_several(rng: Rng, facts: Facts) -> str:
    things = [noun_phrase(rng, mention) for mention in facts.mentions]
    listed = ", ".join(things[:-1]) + " and " + things[-1]
    joined = f"{things[0]} together with " + " and ".join(things[1:])
    place = _place(rng, facts)
    forms = [f"{pick(rng, _OPENINGS)}{listed}{place}", f"{joined}{place}", f"{listed} can be seen{place}"]
    if place:
        forms.append(f"{place.strip()}, there is {listed}")
    return pick(rng, forms)


def _of_related(rng: Rng, facts: Facts) -> str:
    relation = facts.relations[0]
    first, second = facts.mentions[relation.first], facts.mentions[relation.second]
    one, other = noun_phrase(rng, first), noun_phrase(rng, second)
    before, back = (pick(rng, phrases) for phrases in RELATIONS[relation.kind])
    verb = pick(rng, CATEGORIES[first.category].verbs)
    place = _place(rng, facts)
    forms = [
        f"{pick(rng, _OPENINGS)}{one} {before} {other}{place}",
        f"{one} {verb} {before} {other}{place}",
        f"{one} is {before} {other}{place}",
        f"{before} {other} there is {one}{place}",
        f"{other}{place} with {one} {back}",
    ]
    if place:
        forms.append(f"{place.strip()}, {one} {verb} {before} {other}")
    words = pick(rng, forms)
    rest = [noun_phrase(rng, mention) for mention in facts.mentions[2:]]
    return words if not rest else f"{words}, and also " + " and ".join(rest)
