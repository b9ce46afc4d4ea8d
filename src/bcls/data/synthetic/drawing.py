"""Drawing of backgrounds and objects with Pillow."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageDraw

from bcls.data.synthetic.scene import SceneObject

Rng = np.random.Generator
Draw = ImageDraw.ImageDraw
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
_BEAK = (240, 160, 40)
_NOSE = (225, 120, 130)
_HEADLIGHT = (255, 240, 150)
_FLOWER_CENTRE = (250, 205, 50)
_BULB = (255, 236, 140)
_SKY = ((150, 200, 245), (222, 238, 250))


def draw_background(name: str, side: int, rng: Rng) -> Image.Image:
    """Draw a background, in pale colours so that the objects stand out.

    Args:
        name: A key of ``BACKGROUNDS``.
        side: Side of the image in pixels.
        rng: Source of the random details: horizon, clouds, grass.

    Returns:
        A square RGB image.
    """
    (sky_top, sky_low), (land_top, land_low), draw_details = _BACKGROUNDS[name]
    horizon = round(side * float(rng.uniform(0.46, 0.54)))
    rows = np.concatenate([_gradient(sky_top, sky_low, horizon), _gradient(land_top, land_low, side - horizon)])
    rows += rng.uniform(-6.0, 6.0, size=3)
    column = Image.fromarray(np.clip(rows, 0, 255).astype(np.uint8)[:, None, :])
    image = column.resize((side, side), Image.Resampling.NEAREST)
    draw_details(ImageDraw.Draw(image), side, horizon, rng)
    return image


def draw_object(image: Image.Image, one: SceneObject, rng: Rng) -> None:
    """Draw an object on a square image, in place."""
    pen = Pen(ImageDraw.Draw(image), one, image.width, rng)
    SHAPES[one.category](pen)
    pen.finish()


def _gradient(top: Colour, low: Colour, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    share = np.linspace(0.0, 1.0, count)[:, None]
    return np.asarray(top) * (1 - share) + np.asarray(low) * share


def _meadow(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    _clouds(draw, side, rng)
    _hill(draw, side, horizon, float(rng.uniform(0.1, 0.9)), (150, 205, 130))
    for x, y in rng.uniform((0.0, horizon / side), (1.0, 1.0), size=(60, 2)) * side:
        tall = side * 0.02
        draw.line((x, y, x - tall / 2, y - tall), fill=(105, 170, 85), width=2)
        draw.line((x, y, x + tall / 2, y - tall), fill=(105, 170, 85), width=2)


def _beach(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    _clouds(draw, side, rng)
    draw.rectangle((0, horizon, side, horizon + side * 0.1), fill=(88, 165, 210))
    foam = [(x, horizon + side * (0.1 + 0.012 * np.sin(x / side * 18 + 2))) for x in range(0, side + 8, 8)]
    draw.line(foam, fill=LIGHT, width=max(2, side // 50))
    _specks(draw, side, horizon + side * 0.14, rng, (214, 190, 140), 120)


def _snow(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    for centre in rng.uniform(0.0, 1.0, size=3):
        peak, half = horizon - side * 0.22, side * 0.28
        x = float(centre) * side
        draw.polygon([(x - half, horizon), (x, peak), (x + half, horizon)], fill=(176, 190, 208))
        draw.polygon([(x - half * 0.3, peak + side * 0.066), (x, peak), (x + half * 0.3, peak + side * 0.066)], LIGHT)
    for x, y in rng.uniform(0.0, side, size=(50, 2)):
        draw.ellipse((x, y, x + side * 0.014, y + side * 0.014), fill=LIGHT)
    for x, y in rng.uniform((0.0, horizon / side), (1.0, 1.0), size=(8, 2)) * side:
        draw.line((x, y, x + side * 0.1, y + side * 0.01), fill=(206, 218, 234), width=2)


def _city(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    for x, y in rng.uniform(0.0, 1.0, size=(25, 2)):
        draw.point((x * side, y * horizon), fill=(240, 240, 210))
    moon = float(rng.uniform(0.1, 0.85)) * side
    draw.ellipse((moon, side * 0.05, moon + side * 0.1, side * 0.15), fill=(250, 245, 205))
    for left in np.arange(0.0, side, side / 8):
        top = horizon - side * float(rng.uniform(0.08, 0.3))
        draw.rectangle((left, top, left + side / 8 - 2, horizon), fill=(58, 62, 92))
        for x in np.arange(left + side * 0.02, left + side * 0.1, side * 0.035):
            for y in np.arange(top + side * 0.025, horizon - side * 0.03, side * 0.05):
                if rng.random() < 0.5:
                    draw.rectangle((x, y, x + side * 0.016, y + side * 0.024), fill=(250, 220, 120))
    draw.rectangle((0, horizon, side, horizon + side * 0.03), fill=(120, 120, 135))


def _room(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    for x in np.arange(0.0, side, side / 12):
        draw.line((x, 0, x, horizon), fill=(236, 216, 196), width=max(2, side // 60))
    draw.rectangle((0, horizon - side * 0.02, side, horizon), fill=(250, 246, 238))
    left, top, wide = float(rng.uniform(0.06, 0.66)) * side, side * 0.08, side * 0.26
    draw.rectangle(
        (left, top, left + wide, top + wide), fill=(198, 226, 244), outline=(250, 250, 250), width=side // 40
    )
    draw.line((left + wide / 2, top, left + wide / 2, top + wide), fill=(250, 250, 250), width=side // 60)
    draw.line((left, top + wide / 2, left + wide, top + wide / 2), fill=(250, 250, 250), width=side // 60)
    for y in np.arange(horizon + side * 0.07, side, side * 0.08):
        draw.line((0, y, side, y), fill=(176, 132, 90), width=2)
        for x in rng.uniform(0.0, side, size=3):
            draw.line((x, y, x, y + side * 0.08), fill=(176, 132, 90), width=2)


def _road(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    _clouds(draw, side, rng)
    _hill(draw, side, horizon, float(rng.uniform(0.1, 0.9)), (165, 200, 140))
    middle = side * float(rng.uniform(0.42, 0.58))
    draw.polygon(
        [(middle - side * 0.06, horizon), (middle + side * 0.06, horizon), (side * 1.1, side), (-side * 0.1, side)],
        fill=(150, 152, 158),
    )
    for start in (0.08, 0.3, 0.62):
        top, low = (horizon + (side - horizon) * share for share in (start, start + 0.16 + start * 0.2))
        thin = side * (0.006 + 0.02 * start)
        draw.polygon(
            [(middle - thin, top), (middle + thin, top), (middle + thin * 1.3, low), (middle - thin * 1.3, low)],
            fill=(245, 240, 225),
        )


def _sea(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    _clouds(draw, side, rng)
    for x, y in rng.uniform((0.0, horizon / side + 0.03), (1.0, 1.0), size=(34, 2)) * side:
        reach = side * 0.035
        draw.arc((x - reach, y - reach / 2, x + reach, y + reach / 2), 190, 350, fill=(200, 228, 242), width=3)


def _desert(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    sun = float(rng.uniform(0.1, 0.8)) * side
    draw.ellipse((sun, side * 0.08, sun + side * 0.12, side * 0.2), fill=(255, 244, 205))
    for centre, tone in zip(
        rng.uniform(0.0, 1.0, size=3), ((226, 178, 112), (236, 190, 124), (230, 184, 118)), strict=True
    ):
        _hill(draw, side, horizon, float(centre), tone)
    _specks(draw, side, horizon, rng, (206, 160, 100), 70)
    x, low, tall = float(rng.uniform(0.05, 0.95)) * side, horizon + side * 0.03, side * 0.13
    arm = tall * 0.35
    draw.line((x, low, x, low - tall), fill=(122, 158, 104), width=side // 40)
    draw.line(
        [
            (x - arm, low - tall * 0.8),
            (x - arm, low - tall * 0.45),
            (x + arm, low - tall * 0.45),
            (x + arm, low - tall * 0.9),
        ],
        fill=(122, 158, 104),
        width=side // 60,
    )


def _clouds(draw: Draw, side: int, rng: Rng) -> None:
    for x, y in rng.uniform((0.0, 0.04), (0.9, 0.26), size=(2, 2)) * side:
        for shift, drop, reach in ((0.0, 0.02, 0.05), (0.05, 0.0, 0.07), (0.11, 0.02, 0.05)):
            left, top = x + shift * side, y + drop * side
            draw.ellipse((left, top, left + 2 * reach * side, top + reach * side), fill=(246, 250, 254))


def _hill(draw: Draw, side: int, horizon: int, centre: float, fill: Colour) -> None:
    x, reach = centre * side, side * 0.42
    draw.pieslice((x - reach, horizon - side * 0.09, x + reach, horizon + side * 0.09), 180, 360, fill=fill)


def _specks(draw: Draw, side: int, top: float, rng: Rng, fill: Colour, count: int) -> None:
    for x, y in rng.uniform((0.0, top / side), (1.0, 1.0), size=(count, 2)) * side:
        draw.ellipse((x, y, x + 2, y + 1), fill=fill)


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """Mix two colours; ``share`` is the share of ``other``.

    Example:
        >>> mix((0, 0, 0), (200, 100, 50), 0.5)
        (100, 50, 25)
    """
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


class Pen:
    """Collects the shapes of an object and draws them at its position, with its colour and size.

    Coordinates are relative to the box of the object, (0, 0) at its top left, facing right. Shapes of the body get a
    common outline; marks (eyes, windows) are drawn on top without one.
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
        # Black objects have a pale outline, which is visible at night.
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
        """Add a thick line to the body; its width is a fraction of the shorter side of the box."""
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
        """Draw everything: all outlines first, so that they are visible only around the whole body."""
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
            # Pillow draws square ends; round ends look better for limbs and stalks.
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


def dog(pen: Pen) -> None:
    """A dog from the side: long body, four legs, hanging ear, long snout, tail up."""
    pen.stroke([(0.14, 0.48), (0.06, 0.34), (0.05, 0.16)], 0.09)
    for x in (0.14, 0.27, 0.53, 0.66):
        pen.polygon(box(x, 0.6, x + 0.09, 1.0), pen.dark if x in (0.27, 0.53) else None)
    pen.ellipse(0.1, 0.38, 0.78, 0.76)
    pen.polygon([(0.56, 0.45), (0.62, 0.2), (0.82, 0.3), (0.76, 0.6)])
    pen.ellipse(0.58, 0.04, 0.86, 0.44)
    pen.ellipse(0.74, 0.2, 1.0, 0.42)
    pen.mark_polygon([(0.6, 0.08), (0.7, 0.06), (0.71, 0.36), (0.63, 0.46), (0.56, 0.34)], pen.dark)
    _eye(pen, 0.775, 0.17)
    pen.mark_ellipse(0.93, 0.21, 1.0, 0.3, pen.outline)
    pen.mark_stroke([(0.86, 0.36), (0.96, 0.36)], 0.02, pen.outline)


def cat(pen: Pen) -> None:
    """A sitting cat: round head with pointed ears and whiskers, tail curled up at its side."""
    pen.stroke([(0.66, 0.92), (0.88, 0.9), (0.95, 0.72), (0.9, 0.52)], 0.1)
    pen.ellipse(0.22, 0.42, 0.76, 1.0)
    pen.polygon([(0.24, 0.28), (0.22, 0.0), (0.46, 0.14)])
    pen.polygon([(0.74, 0.28), (0.76, 0.0), (0.52, 0.14)])
    pen.ellipse(0.2, 0.1, 0.78, 0.52)
    for x in (0.36, 0.52):
        pen.mark_ellipse(x, 0.84, x + 0.12, 1.0, pen.light)
    for x in (0.36, 0.61):
        _eye(pen, x, 0.28)
    pen.mark_polygon([(0.45, 0.36), (0.53, 0.36), (0.49, 0.41)], _NOSE)
    for x, tip in ((0.4, 0.1), (0.58, 0.88)):
        pen.mark_stroke([(x, 0.39), (tip, 0.35)], 0.015, pen.outline)
        pen.mark_stroke([(x, 0.42), (tip, 0.45)], 0.015, pen.outline)


def bird(pen: Pen) -> None:
    """A flying bird with a raised wing, a fanned tail and a beak."""
    pen.polygon([(0.28, 0.56), (0.0, 0.46), (0.03, 0.62), (0.0, 0.76)])
    pen.polygon([(0.9, 0.42), (1.0, 0.5), (0.88, 0.56)], _BEAK)
    pen.ellipse(0.18, 0.42, 0.78, 0.82)
    pen.ellipse(0.64, 0.26, 0.93, 0.64)
    pen.mark_polygon([(0.34, 0.6), (0.12, 0.12), (0.24, 0.0), (0.44, 0.16), (0.62, 0.56), (0.5, 0.68)], pen.dark)
    pen.mark_stroke([(0.2, 0.14), (0.42, 0.56)], 0.02, pen.outline)
    pen.polygon([(0.34, 0.6), (0.12, 0.12), (0.24, 0.0), (0.44, 0.16), (0.62, 0.56)])
    pen.mark_ellipse(0.36, 0.64, 0.68, 0.8, pen.light)
    _eye(pen, 0.81, 0.41)
    for x in (0.42, 0.52):
        pen.stroke([(x, 0.8), (x - 0.05, 1.0)], 0.03, _BEAK)


def fish(pen: Pen) -> None:
    """A fish from the side with a forked tail, two fins and stripes."""
    pen.polygon([(0.34, 0.5), (0.0, 0.08), (0.1, 0.5), (0.0, 0.92)])
    pen.polygon([(0.45, 0.25), (0.52, 0.0), (0.78, 0.22)], pen.dark)
    pen.polygon([(0.5, 0.78), (0.52, 1.0), (0.7, 0.8)], pen.dark)
    pen.ellipse(0.22, 0.14, 1.0, 0.86)
    for x, reach in ((0.42, 0.24), (0.55, 0.29)):
        pen.mark_polygon(box(x, 0.5 - reach, x + 0.06, 0.5 + reach), pen.light)
    pen.mark_ellipse(0.77, 0.27, 0.91, 0.49, LIGHT)
    pen.mark_ellipse(0.82, 0.32, 0.9, 0.45)
    pen.mark_stroke([(0.88, 0.66), (0.97, 0.6)], 0.03, pen.outline)


def _eye(pen: Pen, x: float, y: float) -> None:
    pen.mark_ellipse(x - 0.045, y - 0.05, x + 0.045, y + 0.05, LIGHT)
    pen.mark_ellipse(x - 0.022, y - 0.03, x + 0.028, y + 0.035, DARK)


def car(pen: Pen) -> None:
    """A car from the side: low body, cabin with two windows, two wheels."""
    pen.polygon([(0.16, 0.46), (0.3, 0.06), (0.68, 0.06), (0.86, 0.46)])
    pen.polygon([(0.0, 0.5), (0.06, 0.42), (0.92, 0.42), (1.0, 0.56), (1.0, 0.8), (0.0, 0.8)])
    pen.mark_polygon([(0.25, 0.42), (0.34, 0.14), (0.47, 0.14), (0.47, 0.42)], GLASS)
    pen.mark_polygon([(0.52, 0.42), (0.52, 0.14), (0.65, 0.14), (0.77, 0.42)], GLASS)
    pen.mark_stroke([(0.495, 0.46), (0.495, 0.76)], 0.02, pen.outline)
    pen.mark_ellipse(0.92, 0.5, 1.0, 0.64, _HEADLIGHT)
    for x in (0.12, 0.67):
        _wheel(pen, x, 0.58, x + 0.21, 1.0)


def bus(pen: Pen) -> None:
    """A long bus: a tall box with a row of windows, a door and two wheels."""
    pen.polygon([(0.02, 0.02), (0.95, 0.02), (1.0, 0.1), (1.0, 0.84), (0.0, 0.84), (0.0, 0.06)])
    for x in (0.05, 0.22, 0.39, 0.56):
        pen.mark_polygon(box(x, 0.14, x + 0.14, 0.42), GLASS)
    pen.mark_polygon(box(0.76, 0.14, 0.9, 0.8), pen.outline)
    pen.mark_polygon(box(0.78, 0.18, 0.88, 0.6), GLASS)
    pen.mark_polygon(box(0.93, 0.14, 1.0, 0.45), GLASS)
    pen.mark_polygon(box(0.0, 0.54, 0.72, 0.6), pen.light)
    for x in (0.12, 0.58):
        _wheel(pen, x, 0.68, x + 0.18, 1.0)


def boat(pen: Pen) -> None:
    """A sailing boat: a hull, a mast and two sails."""
    pen.polygon(box(0.47, 0.0, 0.51, 0.74), WOOD)
    pen.polygon([(0.53, 0.04), (0.53, 0.64), (0.96, 0.64)])
    pen.polygon([(0.45, 0.14), (0.45, 0.64), (0.1, 0.64)], pen.light)
    pen.polygon([(0.0, 0.72), (1.0, 0.72), (0.84, 1.0), (0.17, 1.0)])
    pen.mark_polygon([(0.03, 0.77), (0.97, 0.77), (0.94, 0.83), (0.06, 0.83)], pen.dark)


def _wheel(pen: Pen, x0: float, y0: float, x1: float, y1: float) -> None:
    pen.ellipse(x0, y0, x1, y1, DARK)
    wide, high = (x1 - x0) / 3.4, (y1 - y0) / 3.4
    pen.mark_ellipse(x0, y0, x1, y1, DARK)
    pen.mark_ellipse(x0 + wide, y0 + high, x1 - wide, y1 - high, METAL)
    pen.mark_ellipse(x0 + 1.4 * wide, y0 + 1.4 * high, x1 - 1.4 * wide, y1 - 1.4 * high, LIGHT)


def tree(pen: Pen) -> None:
    """A tree with a trunk and a round crown."""
    pen.polygon([(0.43, 0.55), (0.57, 0.55), (0.62, 1.0), (0.38, 1.0)], WOOD)
    pen.ellipse(0.0, 0.26, 0.55, 0.66)
    pen.ellipse(0.45, 0.26, 1.0, 0.66)
    pen.ellipse(0.16, 0.0, 0.84, 0.5)
    pen.mark_ellipse(0.26, 0.07, 0.54, 0.25, pen.light)
    pen.mark_ellipse(0.08, 0.36, 0.28, 0.48, pen.light)
    pen.mark_ellipse(0.6, 0.42, 0.88, 0.6, pen.dark)


def flower(pen: Pen) -> None:
    """A flower: round petals about a centre, a stalk with two leaves."""
    pen.stroke([(0.5, 0.4), (0.5, 0.97)], 0.08, STEM)
    pen.polygon([(0.5, 0.86), (0.16, 0.66), (0.12, 0.8)], STEM)
    pen.polygon([(0.5, 0.92), (0.84, 0.72), (0.9, 0.84)], STEM)
    for step in range(6):
        angle = math.pi / 3 * step + 0.3
        x, y = 0.5 + 0.29 * math.cos(angle), 0.31 + 0.19 * math.sin(angle)
        pen.ellipse(x - 0.2, y - 0.13, x + 0.2, y + 0.13)
        pen.mark_stroke([(0.5, 0.31), (x, y)], 0.03, pen.dark)
    # The centre of a yellow or white flower must differ from its petals.
    centre = WOOD if min(pen.colour[:2]) > 180 else _FLOWER_CENTRE
    pen.mark_ellipse(0.35, 0.21, 0.65, 0.41, centre)


def mushroom(pen: Pen) -> None:
    """A mushroom: a spotted cap on a thick pale stalk."""
    pen.polygon([(0.37, 0.5), (0.63, 0.5), (0.7, 1.0), (0.3, 1.0)], CREAM)
    dome = [(0.5 + 0.5 * math.cos(angle), 0.58 + 0.58 * math.sin(angle)) for angle in _arc(180, 360, 14)]
    pen.polygon([*dome, (0.8, 0.66), (0.2, 0.66)])
    # White spots would be invisible on a white cap.
    spots = pen.dark if min(pen.colour) > 200 else LIGHT
    for x, y, reach in ((0.5, 0.2, 0.09), (0.25, 0.4, 0.07), (0.74, 0.42, 0.08), (0.5, 0.5, 0.05)):
        pen.mark_ellipse(x - reach, y - reach, x + reach, y + reach, spots)


def house(pen: Pen) -> None:
    """A house: walls, a pitched roof with a chimney, a door and two windows."""
    pen.polygon(box(0.72, 0.06, 0.84, 0.36), WOOD)
    pen.polygon(box(0.1, 0.42, 0.9, 1.0))
    pen.polygon([(0.0, 0.46), (0.5, 0.0), (1.0, 0.46)], pen.dark)
    pen.mark_polygon(box(0.42, 0.64, 0.6, 1.0), WOOD)
    pen.mark_ellipse(0.55, 0.8, 0.58, 0.84, LIGHT)
    for x in (0.17, 0.66):
        pen.mark_polygon(box(x, 0.56, x + 0.18, 0.76), pen.outline)
        pen.mark_polygon(box(x + 0.02, 0.58, x + 0.16, 0.74), GLASS)
        pen.mark_stroke([(x + 0.09, 0.58), (x + 0.09, 0.74)], 0.015, pen.outline)


def tower(pen: Pen) -> None:
    """A castle tower: battlements on a tall shaft, slit windows, a gate and a flag."""
    pen.stroke([(0.5, 0.0), (0.5, 0.2)], 0.03, DARK)
    pen.polygon([(0.5, 0.0), (0.82, 0.05), (0.5, 0.1)], pen.dark)
    for x in (0.02, 0.28, 0.54, 0.8):
        pen.polygon(box(x, 0.17, x + 0.18, 0.3))
    pen.polygon(box(0.02, 0.25, 0.98, 0.38))
    pen.polygon([(0.14, 0.36), (0.86, 0.36), (0.92, 1.0), (0.08, 1.0)])
    pen.mark_polygon(box(0.14, 0.38, 0.86, 0.41), pen.dark)
    for x, y in ((0.3, 0.48), (0.62, 0.48), (0.46, 0.62)):
        pen.mark_polygon(box(x, y, x + 0.09, y + 0.1), pen.outline)
    pen.mark_ellipse(0.34, 0.76, 0.66, 0.94, WOOD)
    pen.mark_polygon(box(0.34, 0.85, 0.66, 1.0), WOOD)


def _arc(start: int, end: int, steps: int) -> list[float]:
    return [math.radians(start + (end - start) * step / steps) for step in range(steps + 1)]


def ball(pen: Pen) -> None:
    """A ball with two curved seams and a shine."""
    pen.ellipse(0.0, 0.0, 1.0, 1.0)
    pale = pen.dark if min(pen.colour) > 200 else pen.light
    for bend in (-0.28, 0.28):
        seam = [(0.5 + bend * math.cos(math.pi / 2 * step), 0.5 + 0.47 * step) for step in _steps(12)]
        pen.mark_stroke(seam, 0.07, pale)
    pen.mark_ellipse(0.2, 0.14, 0.36, 0.28, LIGHT)


def kite(pen: Pen) -> None:
    """A kite: a diamond of two tones with a cross and a tail of bows."""
    pen.stroke([(0.5, 0.6), (0.4, 0.72), (0.6, 0.86), (0.45, 0.98)], 0.03, DARK)
    pen.polygon([(0.5, 0.0), (1.0, 0.26), (0.5, 0.66), (0.0, 0.26)])
    pen.mark_polygon([(0.5, 0.0), (1.0, 0.26), (0.5, 0.26)], pen.light)
    pen.mark_polygon([(0.0, 0.26), (0.5, 0.26), (0.5, 0.66)], pen.dark)
    for x, y in ((0.42, 0.74), (0.56, 0.87)):
        pen.polygon([(x, y), (x - 0.15, y - 0.04), (x - 0.15, y + 0.04)])
        pen.polygon([(x, y), (x + 0.15, y - 0.04), (x + 0.15, y + 0.04)])


def balloon(pen: Pen) -> None:
    """A balloon with a knot, a shine and a wavy string."""
    pen.stroke([(0.5, 0.64), (0.58, 0.76), (0.44, 0.88), (0.52, 1.0)], 0.03, DARK)
    pen.polygon([(0.5, 0.58), (0.4, 0.68), (0.6, 0.68)], pen.dark)
    pen.ellipse(0.0, 0.0, 1.0, 0.64)
    pen.mark_ellipse(0.2, 0.09, 0.38, 0.26, pen.light)


def chair(pen: Pen) -> None:
    """A chair seen from a little to the side: tall back with slats, seat and legs."""
    for x in (0.2, 0.58):
        pen.polygon(box(x, 0.6, x + 0.08, 0.9), pen.dark)
    for x in (0.02, 0.88):
        pen.polygon(box(x, 0.6, x + 0.1, 1.0))
    for x in (0.02, 0.26, 0.48, 0.7):
        pen.polygon(box(x, 0.06, x + 0.1, 0.58))
    pen.polygon(box(0.0, 0.0, 0.82, 0.12))
    pen.polygon(box(0.0, 0.28, 0.82, 0.36))
    pen.polygon([(0.0, 0.52), (0.8, 0.52), (1.0, 0.64), (1.0, 0.7), (0.0, 0.7)])
    pen.mark_polygon([(0.02, 0.53), (0.79, 0.53), (0.95, 0.62), (0.06, 0.62)], pen.light)


def lamp(pen: Pen) -> None:
    """A floor lamp: a wide shade with a bulb under it, on a thin pole with a foot."""
    pen.polygon(box(0.46, 0.3, 0.54, 0.96), METAL)
    pen.ellipse(0.2, 0.92, 0.8, 1.0, METAL)
    pen.ellipse(0.36, 0.28, 0.64, 0.42, _BULB)
    pen.polygon([(0.28, 0.0), (0.72, 0.0), (1.0, 0.34), (0.0, 0.34)])
    pen.mark_polygon([(0.34, 0.04), (0.46, 0.04), (0.4, 0.3), (0.16, 0.3)], pen.light)


def umbrella(pen: Pen) -> None:
    """An open umbrella: a scalloped dome of panels over a stick with a hooked handle."""
    pen.stroke([(0.5, 0.04), (0.5, 0.9), (0.54, 0.97), (0.62, 0.97), (0.65, 0.9)], 0.045, WOOD)
    dome = [(0.5 - 0.5 * math.cos(math.pi / 2 * (1 + step)), 0.54 - 0.5 * _rise(step)) for step in _steps(16)]
    hem = [(1.0 - 0.25 * part, y) for part in range(4) for y in (0.54,)]
    scallops = [point for x, y in hem for point in ((x, y), (x - 0.125, y - 0.07))]
    pen.polygon([*dome, *scallops])
    for x in (0.25, 0.5, 0.75):
        pen.mark_stroke([(0.5, 0.05), ((x + 0.5) / 2 + (x - 0.5) * 0.2, 0.25), (x, 0.53)], 0.02, pen.outline)
    pen.mark_polygon([(0.5, 0.06), (0.34, 0.26), (0.27, 0.5), (0.375, 0.46), (0.48, 0.5)], pen.light)


def _steps(count: int) -> list[float]:
    """Evenly spaced numbers from -1 to 1."""
    return [2 * step / count - 1 for step in range(count + 1)]


def _rise(step: float) -> float:
    return math.sqrt(max(0.0, 1 - step * step)) if abs(step) < 1 else 0.0


_Details = Callable[[Draw, int, int, Rng], None]
_BACKGROUNDS: dict[str, tuple[tuple[Colour, Colour], tuple[Colour, Colour], _Details]] = {
    "meadow": (_SKY, ((166, 214, 130), (128, 190, 100)), _meadow),
    "beach": (_SKY, ((240, 218, 168), (232, 206, 150)), _beach),
    "snow": (((186, 200, 216), (224, 232, 240)), ((232, 238, 246), LIGHT), _snow),
    "city": (((14, 18, 48), (44, 48, 92)), ((74, 76, 92), (56, 58, 74)), _city),
    "room": (((244, 226, 206), (240, 220, 198)), ((206, 160, 114), (190, 144, 100)), _room),
    "road": (_SKY, ((184, 214, 150), (160, 196, 128)), _road),
    "sea": (_SKY, ((104, 174, 214), (54, 122, 176)), _sea),
    "desert": (((250, 206, 140), (253, 230, 186)), ((238, 196, 130), (226, 176, 106)), _desert),
}

#: Functions that draw the objects, by category.
SHAPES: dict[str, Callable[[Pen], None]] = {
    shape.__name__: shape
    for shape in (
        *(dog, cat, bird, fish, car, bus, boat, tree, flower, mushroom, house, tower),
        *(ball, kite, balloon, chair, lamp, umbrella),
    )
}
