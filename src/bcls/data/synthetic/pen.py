"""A pen that draws one object in its own box, in its own colour, with a dark line around its outside."""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import ImageDraw

from bcls.data.synthetic.scene import SceneObject

Colour = tuple[int, int, int]
Point = tuple[float, float]

PAINT: dict[str, Colour] = {
    "red": (212, 32, 38),
    "orange": (247, 138, 22),
    "yellow": (250, 217, 48),
    "green": (48, 150, 62),
    "blue": (40, 96, 214),
    "purple": (138, 58, 178),
    "brown": (122, 74, 42),
    "white": (248, 248, 248),
    "black": (38, 38, 42),
}
DARK: Colour = (30, 28, 32)
WOOD: Colour = (112, 76, 48)
CREAM: Colour = (244, 232, 205)
GLASS: Colour = (190, 222, 240)
STEM: Colour = (52, 120, 52)
METAL: Colour = (128, 130, 138)
LIGHT: Colour = (255, 255, 255)


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """Return ``one`` with a share of ``other`` in it.

    Example:
        >>> mix((0, 0, 0), (200, 100, 50), 0.5)
        (100, 50, 25)
    """
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


class Pen:
    """Takes shapes in the object's unit box, (0, 0) at its top left, facing right, and draws them at its place.

    Shapes of the body get one common outline; marks (eyes, windows) lie on top without one.
    """

    def __init__(self, draw: ImageDraw.ImageDraw, one: SceneObject, side: int, rng: np.random.Generator) -> None:
        self._draw = draw
        wobble = rng.uniform(0.95, 1.0, size=2)
        self._width = one.width * side * float(wobble[0])
        self._height = one.height * side * float(wobble[1])
        self._left = one.x * side - self._width / 2
        self._top = one.y * side - self._height / 2
        self._mirrored = one.mirrored
        shade = mix(PAINT[one.colour], LIGHT if rng.random() < 0.5 else DARK, float(rng.uniform(0.0, 0.08)))
        self.colour = shade
        self.dark = mix(shade, DARK, 0.35) if one.colour != "black" else (78, 78, 84)
        self.light = mix(shade, LIGHT, 0.45)
        # Black things have a pale outline, or they would vanish at night.
        self.outline = mix(shade, DARK, 0.7) if one.colour != "black" else (150, 150, 156)
        self._line = max(1.0, side / 130)
        self._body: list[tuple[Callable[[float, Colour], None], Colour]] = []
        self._marks: list[tuple[Callable[[float, Colour], None], Colour]] = []

    def ellipse(self, x0: float, y0: float, x1: float, y1: float, fill: Colour | None = None) -> None:
        """Add an ellipse to the body."""
        self._body.append((self._ellipse(x0, y0, x1, y1), fill or self.colour))

    def polygon(self, points: Sequence[Point], fill: Colour | None = None) -> None:
        """Add a polygon to the body."""
        self._body.append((self._polygon(points), fill or self.colour))

    def stroke(self, points: Sequence[Point], width: float, fill: Colour | None = None) -> None:
        """Add a thick line to the body; its width is a share of the box's shorter side."""
        self._body.append((self._stroke(points, width), fill or self.colour))

    def mark_ellipse(self, x0: float, y0: float, x1: float, y1: float, fill: Colour = DARK) -> None:
        """Add an ellipse on top, without an outline."""
        self._marks.append((self._ellipse(x0, y0, x1, y1), fill))

    def mark_polygon(self, points: Sequence[Point], fill: Colour = DARK) -> None:
        """Add a polygon on top, without an outline."""
        self._marks.append((self._polygon(points), fill))

    def mark_stroke(self, points: Sequence[Point], width: float, fill: Colour = DARK) -> None:
        """Add a thick line on top, without an outline."""
        self._marks.append((self._stroke(points, width), fill))

    def finish(self) -> None:
        """Put everything on the canvas: all outlines first, so that they show only around the whole body."""
        for shape, _ in self._body:
            shape(self._line, self.outline)
        for shape, fill in [*self._body, *self._marks]:
            shape(0.0, fill)

    def _at(self, x: float, y: float) -> Point:
        across = 1.0 - x if self._mirrored else x
        return self._left + across * self._width, self._top + y * self._height

    def _ellipse(self, x0: float, y0: float, x1: float, y1: float) -> Callable[[float, Colour], None]:
        (ax, ay), (bx, by) = self._at(x0, y0), self._at(x1, y1)
        left, right = min(ax, bx), max(ax, bx)

        def shape(grow: float, fill: Colour) -> None:
            self._draw.ellipse((left - grow, ay - grow, right + grow, by + grow), fill=fill)

        return shape

    def _polygon(self, points: Sequence[Point]) -> Callable[[float, Colour], None]:
        placed = [self._at(x, y) for x, y in points]

        def shape(grow: float, fill: Colour) -> None:
            self._draw.polygon(placed, fill=fill)
            if grow:
                self._draw.line([*placed, placed[0], placed[1]], fill=fill, width=round(2 * grow), joint="curve")

        return shape

    def _stroke(self, points: Sequence[Point], width: float) -> Callable[[float, Colour], None]:
        placed = [self._at(x, y) for x, y in points]
        thick = width * min(self._width, self._height)

        def shape(grow: float, fill: Colour) -> None:
            self._draw.line(placed, fill=fill, width=max(1, round(thick + 2 * grow)), joint="curve")
            radius = thick / 2 + grow
            # Pillow cuts lines off square: round ends look like limbs and stalks.
            for x, y in (placed[0], placed[-1]) if radius > 1.5 else ():
                self._draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)

        return shape


def box(x0: float, y0: float, x1: float, y1: float) -> list[Point]:
    """Return the corners of an upright rectangle.

    Example:
        >>> box(0, 0, 1, 2)
        [(0, 0), (1, 0), (1, 2), (0, 2)]
    """
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
