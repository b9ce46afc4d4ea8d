"""Texts that an index is measured with: things that photos show, and things that no photo shows."""

_SCENES = (
    "a dog running on a beach",
    "a cat asleep on a sofa",
    "a birthday cake with candles",
    "children playing football on grass",
    "a crowded street at night",
    "mountains covered in snow",
    "a red car parked by the road",
    "two people riding bicycles",
    "a plate of food on a table",
    "a man playing the guitar",
    "a woman in a white dress",
    "a boat on a lake",
    "a sunset over the sea",
    "a group of friends smiling at the camera",
    "a horse in a field",
    "a bird on a branch",
    "a train at a station",
    "flowers in a garden",
    "a baby in a high chair",
    "skiers on a slope",
    "a person climbing a rock",
    "a bridge over a river",
    "a bookshelf full of books",
    "an old church",
    "a surfer on a wave",
    "a girl jumping into a pool",
    "a man cooking in a kitchen",
    "a market stall with fruit",
    "a tent in the woods",
    "people dancing at a wedding",
    "a black and white dog catching a frisbee",
    "a tall building with many windows",
)
_SUBJECTS = (
    "the interest rate",
    "the second theorem",
    "a clause in the contract",
    "the tax declaration",
    "her opinion on grammar",
    "the exchange of letters about copyright",
    "the definition of an integer",
    "yesterday's password",
)
_STATEMENTS = (
    "was postponed until further notice",
    "follows from the assumption above",
    "is no longer compatible with version two",
    "was rejected by a narrow majority",
    "cannot be inferred from the data",
    "remains subject to approval",
    "was misquoted in the footnote",
    "depends on the rate of inflation",
)


def shown() -> tuple[str, ...]:
    """Everyday scenes that collections of photos often have."""
    return _SCENES


def never_shown() -> tuple[str, ...]:
    """Sentences about things that cannot be photographed.

    Example:
        >>> never_shown()[0]
        'the interest rate was postponed until further notice'
    """
    return tuple(f"{subject} {statement}" for subject in _SUBJECTS for statement in _STATEMENTS)
