"""What scenes are made of, and the words for it: categories, colours, sizes and backgrounds.

In every tuple of words the first is the plain one and the rest are synonyms of the same meaning.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Category:
    """One kind of object.

    Attributes:
        group: The super-category.
        words: Nouns for it.
        verbs: Verbs that fit it and state no fact.
        colours: The colours that it has more often than chance.
        width: Width of the drawn box, relative to the size of the object.
        height: Height of the drawn box, relative to the size of the object.
        flies: Whether it belongs in the upper half of the picture.
    """

    group: str
    words: tuple[str, ...]
    verbs: tuple[str, ...]
    colours: tuple[str, ...]
    width: float = 1.0
    height: float = 1.0
    flies: bool = False


@dataclass(frozen=True, slots=True)
class Background:
    """One kind of place.

    Attributes:
        where: Phrases for something that is there.
        over: Phrases for something in the air there.
        nouns: Phrases that name the place itself.
        typical: The categories found there more often than chance.
    """

    where: tuple[str, ...]
    over: tuple[str, ...]
    nouns: tuple[str, ...]
    typical: tuple[str, ...]


_FUR = ("brown", "black", "white", "orange")
_PARKED = ("is parked", "stands")

CATEGORIES: dict[str, Category] = {
    "dog": Category("animal", ("dog", "puppy", "hound"), ("stands", "waits"), _FUR, 1.15, 0.95),
    "cat": Category("animal", ("cat", "kitten", "kitty"), ("sits", "rests"), _FUR, 0.9, 1.05),
    "bird": Category("animal", ("bird", "songbird"), ("flies", "flutters"), ("blue", "red", "yellow"), 1.0, 0.8, True),
    "fish": Category("animal", ("fish",), ("appears", "drifts"), ("orange", "blue"), 1.1, 0.7),
    "car": Category("vehicle", ("car", "automobile"), _PARKED, ("red", "blue", "black"), 1.4, 0.7),
    "bus": Category("vehicle", ("bus", "coach"), _PARKED, ("red", "yellow", "green"), 1.5, 0.85),
    "boat": Category(
        "vehicle", ("boat", "sailboat", "sailing boat"), ("floats", "drifts"), ("white", "blue"), 1.1, 1.1
    ),
    "tree": Category("plant", ("tree", "leafy tree"), ("grows", "stands"), ("green", "orange", "brown"), 1.0, 1.4),
    "flower": Category("plant", ("flower", "blossom"), ("grows", "blooms"), ("red", "yellow", "purple"), 0.75, 1.1),
    "mushroom": Category("plant", ("mushroom", "toadstool"), ("grows", "sprouts"), ("red", "brown"), 0.9, 0.9),
    "ball": Category("toy", ("ball", "toy ball"), ("lies", "rests"), ("red", "blue", "yellow"), 0.8, 0.8),
    "kite": Category("toy", ("kite", "paper kite"), ("flies", "soars"), ("purple", "red", "yellow"), 0.8, 1.15, True),
    "balloon": Category("toy", ("balloon", "party balloon"), ("floats", "hovers"), ("red", "purple"), 0.7, 1.2, True),
    "chair": Category("furniture", ("chair", "seat"), ("stands", "is placed"), ("brown", "white"), 0.75, 1.15),
    "lamp": Category("furniture", ("lamp", "floor lamp"), ("stands", "is placed"), ("yellow", "white"), 0.65, 1.35),
    "umbrella": Category("furniture", ("umbrella", "parasol"), ("stands", "stands open"), ("blue", "red"), 1.1, 1.15),
    "house": Category("building", ("house", "cottage"), ("stands", "sits"), ("white", "yellow", "red"), 1.2, 1.15),
    "tower": Category("building", ("tower", "castle tower"), ("rises", "stands"), ("white", "brown"), 0.75, 1.5),
}

COLOURS: dict[str, tuple[str, ...]] = {
    "red": ("red", "crimson"),
    "orange": ("orange",),
    "yellow": ("yellow", "golden"),
    "green": ("green",),
    "blue": ("blue", "azure"),
    "purple": ("purple", "violet"),
    "brown": ("brown",),
    "white": ("white",),
    "black": ("black",),
}

# "middle" has no words: an object of middle size is never said to be of any size.
SIZES: dict[str, tuple[str, ...]] = {
    "small": ("small", "little", "tiny"),
    "middle": (),
    "large": ("large", "big", "huge"),
}

# The side of an object as a share of the picture's side, before the category's own width and height.
SIZE_SHARE: dict[str, float] = {"small": 0.19, "middle": 0.28, "large": 0.40}

BACKGROUNDS: dict[str, Background] = {
    "meadow": Background(
        ("in a meadow", "on the grass", "in a grassy field"),
        ("above a meadow", "over the grass"),
        ("a meadow", "a grassy field", "open grassland"),
        ("dog", "flower", "tree", "bird", "kite", "mushroom", "house"),
    ),
    "beach": Background(
        ("on the beach", "on a sandy beach", "by the shore"),
        ("above the beach", "over a sandy beach"),
        ("a beach", "a sandy beach", "the shore"),
        ("umbrella", "ball", "dog", "kite", "chair", "boat"),
    ),
    "snow": Background(
        ("in the snow", "on snowy ground", "in a snowy landscape"),
        ("above the snow", "over snowy ground"),
        ("a snowy landscape", "a snowfield", "a winter landscape"),
        ("tree", "house", "dog", "bird", "lamp"),
    ),
    "city": Background(
        ("in a city at night", "in the dark city", "on a city street at night"),
        ("above a city at night", "over the dark city"),
        ("a city at night", "a night skyline", "a dark city street"),
        ("car", "bus", "lamp", "cat", "tower", "balloon"),
    ),
    "room": Background(
        ("in a room", "inside a room", "indoors"),
        ("in a room", "inside a room", "indoors"),
        ("a room", "an indoor room", "the inside of a home"),
        ("chair", "lamp", "cat", "ball", "flower", "balloon"),
    ),
    "road": Background(
        ("on the road", "along a road", "on a country road"),
        ("above the road", "over a country road"),
        ("a road", "a country road", "a street through the countryside"),
        ("car", "bus", "tree", "house", "bird"),
    ),
    "sea": Background(
        ("at sea", "on the water", "in the ocean"),
        ("above the sea", "over the water"),
        ("the open sea", "the ocean", "open water"),
        ("boat", "fish", "bird", "ball"),
    ),
    "desert": Background(
        ("in the desert", "in a dry desert", "among desert dunes"),
        ("above the desert", "over the desert dunes"),
        ("a desert", "a dry desert", "desert dunes"),
        ("tower", "car", "bird", "umbrella", "kite"),
    ),
}

# Each relation: phrases before the second object, and phrases that point back at an object just named.
RELATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "left of": (("to the left of", "left of", "on the left of"), ("on its left", "to its left")),
    "right of": (("to the right of", "right of", "on the right of"), ("on its right", "to its right")),
    "above": (("above", "over", "higher than"), ("above it", "over it")),
    "below": (("below", "under", "beneath"), ("below it", "underneath it")),
    "next to": (("next to", "beside", "near", "close to"), ("beside it", "close to it")),
}
