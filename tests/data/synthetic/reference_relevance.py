"""The documented formula of true relevance, written out with plain loops and its own copy of every number."""

from itertools import product

GROUPS = [
    {"dog", "cat", "bird", "fish"},
    {"car", "bus", "boat"},
    {"tree", "flower", "mushroom"},
    {"ball", "kite", "balloon"},
    {"chair", "lamp", "umbrella"},
    {"house", "tower"},
]
CLOSE = ["dog cat", "car bus", "flower mushroom", "ball balloon", "kite balloon", "house tower"]
NEAR_COLOURS = ["red orange", "orange yellow", "orange brown", "brown black", "blue purple"]
RELATED_PLACES = ["beach sea", "beach desert", "city road", "meadow road"]


def listed(one, other, pairs):
    return f"{one} {other}" in pairs or f"{other} {one}" in pairs


def category_credit(one, other):
    if one == other:
        return 1.0
    if listed(one, other, CLOSE):
        return 0.6
    return 0.3 if any(one in group and other in group for group in GROUPS) else 0.0


def size_credit(stated, seen):
    if stated == seen:
        return 1.0
    return 0.5 if seen == "middle" else 0.0


def credit_or_half(one, other, pairs):
    if one == other:
        return 1.0
    return 0.5 if listed(one, other, pairs) else 0.0


def relation_credit(kind, first, second):
    dx, dy = second.x - first.x, second.y - first.y
    if kind == "next to":
        distance = dx * dx + dy * dy
        return 1.0 if distance <= 0.4**2 else 0.5 if distance <= 0.55**2 else 0.0
    margin = {"left of": dx, "right of": -dx, "above": dy, "below": -dy}[kind]
    holds, partly = (0.15, 0.05) if kind in ("left of", "right of") else (0.2, 0.1)
    return 1.0 if margin >= holds else 0.5 if margin >= partly else 0.0


def full_weight(facts):
    total = 2.0 * len(facts.relations) + (2.0 if facts.background else 0.0)
    for mention in facts.mentions:
        total += 4.0 + (2.0 if mention.colour else 0.0) + (1.0 if mention.size else 0.0)
    return total


def earned(scene, facts, assigned):
    total = 0.0
    credit = [
        category_credit(mention.category, one.category) if one else 0.0
        for mention, one in zip(facts.mentions, assigned, strict=True)
    ]
    for mention, one, kind in zip(facts.mentions, assigned, credit, strict=True):
        if one is None:
            continue
        total += 4.0 * kind
        if mention.colour:
            total += 2.0 * kind * credit_or_half(mention.colour, one.colour, NEAR_COLOURS)
        if mention.size:
            total += 1.0 * kind * size_credit(mention.size, one.size)
    for relation in facts.relations:
        first, second = assigned[relation.first], assigned[relation.second]
        if first is not None and second is not None:
            both = credit[relation.first] * credit[relation.second]
            total += 2.0 * both * relation_credit(relation.kind, first, second)
    if facts.background:
        total += 2.0 * credit_or_half(facts.background, scene.background, RELATED_PLACES)
    return total


def reference_relevance(scene, facts):
    """The relevance of one caption's facts to one scene."""
    best = 0.0
    choices = [None, *range(len(scene.objects))]
    for places in product(choices, repeat=len(facts.mentions)):
        used = [place for place in places if place is not None]
        if len(set(used)) == len(used):
            assigned = [None if place is None else scene.objects[place] for place in places]
            best = max(best, earned(scene, facts, assigned) / full_weight(facts))
    return best
