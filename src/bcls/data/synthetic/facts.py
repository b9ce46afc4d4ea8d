"""What a caption states, kept as structure so that its truth can be told without parsing English."""

from dataclasses import dataclass

from bcls._core.errors import check_choice
from bcls.data.synthetic.scene import MAX_OBJECTS
from bcls.data.synthetic.vocabulary import BACKGROUNDS, CATEGORIES, COLOURS, RELATIONS


@dataclass(frozen=True, slots=True)
class Mention:
    """An object that a caption speaks of; ``None`` where it says nothing."""

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
    """``mentions[first]`` stands in relation ``kind`` to ``mentions[second]``."""

    first: int
    kind: str
    second: int

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, RELATIONS)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that one caption states.

    Attributes:
        mentions: The objects it speaks of, at most four.
        relations: How they lie to one another.
        background: The place it names, if any.

    Example:
        >>> Facts((Mention("dog"), Mention("tree")), (Relation(0, "left of", 1),)).background is None
        True
    """

    mentions: tuple[Mention, ...] = ()
    relations: tuple[Relation, ...] = ()
    background: str | None = None

    def __post_init__(self) -> None:
        if len(self.mentions) > MAX_OBJECTS:
            raise ValueError(
                f"`mentions` must hold at most {MAX_OBJECTS} objects, got {len(self.mentions)}; mention fewer."
            )
        if not self.mentions and self.background is None:
            raise ValueError("`mentions` and `background` must not both be empty, got no fact at all; state one.")
        if self.background is not None:
            check_choice("background", self.background, BACKGROUNDS)
        for relation in self.relations:
            ends = {relation.first, relation.second}
            if len(ends) < 2 or not ends <= set(range(len(self.mentions))):
                raise ValueError(
                    f"`relations` must join two different mentions out of {len(self.mentions)}, "
                    f"got {relation.first} and {relation.second}; use their places in `mentions`."
                )


@dataclass(frozen=True, slots=True)
class Caption:
    """One caption of one image.

    Attributes:
        text: The sentence.
        image: Index of the image that it was written for.
        facts: What it states.
    """

    text: str
    image: int
    facts: Facts
