"""How much a near miss is worth: credits between names, and the weight of each kind of fact.

Every credit lies in [0, 1], is symmetric, and is 1 only between a name and itself. The numbers are a choice made
once, by hand; they define what "true relevance" means for the drawn scenes.
"""

from bcls.data.synthetic.vocabulary import CATEGORIES

# Weights are whole numbers, so that a caption of which everything holds scores exactly 1 and not nearly 1.
CATEGORY_WEIGHT = 4
COLOUR_WEIGHT = 2
SIZE_WEIGHT = 1
RELATION_WEIGHT = 2
BACKGROUND_WEIGHT = 2

SAME_GROUP_CREDIT = 0.3
CLOSE_CATEGORY_CREDIT = 0.6
NEAR_COLOUR_CREDIT = 0.5
MIDDLE_SIZE_CREDIT = 0.5
RELATED_BACKGROUND_CREDIT = 0.5

_CLOSE_CATEGORIES = (
    {"dog", "cat"},
    {"car", "bus"},
    {"flower", "mushroom"},
    {"ball", "balloon"},
    {"kite", "balloon"},
    {"house", "tower"},
)
_NEAR_COLOURS = (
    {"red", "orange"},
    {"orange", "yellow"},
    {"orange", "brown"},
    {"brown", "black"},
    {"blue", "purple"},
)
_RELATED_BACKGROUNDS = (
    {"beach", "sea"},
    {"beach", "desert"},
    {"city", "road"},
    {"meadow", "road"},
)


def category_credit(stated: str, seen: str) -> float:
    """Return the credit for naming one category where another is drawn.

    Example:
        >>> [category_credit("dog", seen) for seen in ("dog", "cat", "fish", "car")]
        [1.0, 0.6, 0.3, 0.0]
    """
    if stated == seen:
        return 1.0
    if {stated, seen} in _CLOSE_CATEGORIES:
        return CLOSE_CATEGORY_CREDIT
    return SAME_GROUP_CREDIT if CATEGORIES[stated].group == CATEGORIES[seen].group else 0.0


def colour_credit(stated: str, seen: str) -> float:
    """Return the credit for naming one colour where another is drawn.

    Example:
        >>> [colour_credit("red", seen) for seen in ("red", "orange", "blue")]
        [1.0, 0.5, 0.0]
    """
    if stated == seen:
        return 1.0
    return NEAR_COLOUR_CREDIT if {stated, seen} in _NEAR_COLOURS else 0.0


def size_credit(stated: str, seen: str) -> float:
    """Return the credit for stating one size of an object that has another.

    Example:
        >>> [size_credit("large", seen) for seen in ("large", "middle", "small")]
        [1.0, 0.5, 0.0]
    """
    if stated == seen:
        return 1.0
    return MIDDLE_SIZE_CREDIT if "middle" in (stated, seen) else 0.0


def background_credit(stated: str, seen: str) -> float:
    """Return the credit for naming one background where another is drawn.

    Example:
        >>> [background_credit("beach", seen) for seen in ("beach", "sea", "room")]
        [1.0, 0.5, 0.0]
    """
    if stated == seen:
        return 1.0
    return RELATED_BACKGROUND_CREDIT if {stated, seen} in _RELATED_BACKGROUNDS else 0.0
