"""Drawing of backgrounds and objects with Pillow."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
LIGHT: Colour = (255, 255, 255)
#: Colours of parts, which do not depend on the colour of the object.
_PARTS: dict[str, Colour] = {
    "black": DARK,
    "white": LIGHT,
    "wood": (112, 76, 48),
    "cream": (244, 232, 205),
    "glass": (190, 222, 240),
    "stem": (52, 120, 52),
    "metal": (128, 130, 138),
    "beak": (240, 160, 40),
    "nose": (225, 120, 130),
    "headlight": (255, 240, 150),
    "bulb": (255, 236, 140),
}
#: The objects by category. Coordinates are relative to the box of the object, (0, 0) at its top left, facing right.
#: Parts of the body get a common outline; marks (eyes, windows) are drawn on top without one. A part has a kind, the
#: name of its colour, points, and the width of a stroke as a fraction of the shorter side of the box.
SHAPES: dict[str, Any] = json.loads((Path(__file__).parent / "shapes.json").read_text(encoding="utf-8"))
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
    side, draw = image.width, ImageDraw.Draw(image)
    wobble = rng.uniform(0.95, 1.0, size=2)
    width, height = one.width * side * float(wobble[0]), one.height * side * float(wobble[1])
    left, top = one.x * side - width / 2, one.y * side - height / 2
    fills = _fills(one.colour, rng)

    def draw_part(kind: str, points: Sequence[Point], stroke: float, fill: Colour, grow: float) -> None:
        placed = [(left + (1.0 - x if one.mirrored else x) * width, top + y * height) for x, y in points]
        _DRAW[kind](draw, placed, stroke * min(width, height), fill, grow)

    shape = SHAPES[one.category]
    # All outlines first, so that they are visible only around the whole body.
    for kind, _, points, *stroke in shape["body"]:
        draw_part(kind, points, sum(stroke), fills["outline"], max(1.0, side / 130))
    for kind, fill, points, *stroke in [*shape["body"], *shape["marks"]]:
        draw_part(kind, points, sum(stroke), fills[fill], 0.0)


def _fills(name: str, rng: Rng) -> dict[str, Colour]:
    """Choose the shade of an object, and return the colours of its parts by their names in ``shapes.json``."""
    shade = mix(PAINT[name], LIGHT if rng.random() < 0.5 else DARK, float(rng.uniform(0.0, 0.08)))
    light = mix(shade, LIGHT, 0.45)
    # Black objects have a pale outline, which is visible at night.
    dark, outline = (mix(shade, DARK, 0.35), mix(shade, DARK, 0.7)) if name != "black" else _ON_BLACK
    # Spots and seams would be invisible on a white object, and so would the yellow centre of a yellow or white flower.
    spots, seam = (dark, dark) if min(shade) > 200 else (LIGHT, light)
    centre = _PARTS["wood"] if min(shade[:2]) > 180 else (250, 205, 50)
    own = {"colour": shade, "light": light, "dark": dark, "outline": outline}
    return {**_PARTS, **own, "spots": spots, "seam": seam, "centre": centre}


def _ellipse(draw: Draw, points: Sequence[Point], _: float, fill: Colour, grow: float) -> None:
    (ax, ay), (bx, by) = points
    draw.ellipse((min(ax, bx) - grow, ay - grow, max(ax, bx) + grow, by + grow), fill=fill)


def _polygon(draw: Draw, points: Sequence[Point], _: float, fill: Colour, grow: float) -> None:
    draw.polygon(points, fill=fill)
    if grow:
        draw.line([*points, points[0], points[1]], fill=fill, width=round(2 * grow), joint="curve")


def _stroke(draw: Draw, points: Sequence[Point], thick: float, fill: Colour, grow: float) -> None:
    draw.line(points, fill=fill, width=max(1, round(thick + 2 * grow)), joint="curve")
    radius = thick / 2 + grow
    # Pillow draws square ends; round ends look better for limbs and stalks.
    for x, y in (points[0], points[-1]) if radius > 1.5 else ():
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)


_DRAW = {"ellipse": _ellipse, "polygon": _polygon, "stroke": _stroke}
_ON_BLACK: tuple[Colour, Colour] = (78, 78, 84), (150, 150, 156)


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
