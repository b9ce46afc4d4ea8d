"""The scene graph: what a picture shows and where, with nothing about how it is drawn or described."""

from dataclasses import dataclass

from bcls._core.errors import check_choice, check_whole
from bcls.data.synthetic.vocabulary import BACKGROUNDS, CATEGORIES, COLOURS, SIZE_SHARE, SIZES

MAX_OBJECTS = 4


@dataclass(frozen=True, slots=True)
class SceneObject:
    """One drawn object.

    Attributes:
        category: A key of ``CATEGORIES``.
        colour: A key of ``COLOURS``.
        size: ``"small"``, ``"middle"`` or ``"large"``, for its category.
        x: Horizontal centre of its box, 0 at the left edge of the picture and 1 at the right.
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
                raise ValueError(
                    f"`{name}` must lie in [0, 1], got {value!r}; give it as a share of the picture's side."
                )

    @property
    def width(self) -> float:
        """Width of the box as a share of the picture's side."""
        return SIZE_SHARE[self.size] * CATEGORIES[self.category].width

    @property
    def height(self) -> float:
        """Height of the box as a share of the picture's side."""
        return SIZE_SHARE[self.size] * CATEGORIES[self.category].height


@dataclass(frozen=True, slots=True)
class Scene:
    """A background with one to four objects.

    Attributes:
        background: A key of ``BACKGROUNDS``.
        objects: The objects, in no particular order.
        seed: Decides only the small accidents of drawing: grain, clouds, the exact shade.

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
            raise ValueError(
                f"`objects` must hold 1 to {MAX_OBJECTS} objects, got {len(self.objects)}; split or fill the scene."
            )
        check_whole("seed", self.seed, least=0)
