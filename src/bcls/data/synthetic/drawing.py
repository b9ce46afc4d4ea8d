"""Drawing of backgrounds and objects with Pillow."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from bcls.data.synthetic.scene import SceneObject

Rng = np.random.Generator
Draw = ImageDraw.ImageDraw
Colour = tuple[int, int, int]
Point = tuple[float, float]

DARK: Colour = (30, 28, 32)
LIGHT: Colour = (255, 255, 255)
#: Colours: of the objects by name; of parts, which do not depend on the colour of the object; and of the backgrounds,
#: from top to bottom.
_PALETTE: dict[str, Any] = json.loads((Path(__file__).parent / "palette.json").read_text(encoding="utf-8"))
PAINT: dict[str, Colour] = {name: tuple(colour) for name, colour in _PALETTE["paint"].items()}
_PARTS: dict[str, Colour] = {name: tuple(colour) for name, colour in _PALETTE["parts"].items()}
#: The objects by category. Coordinates are relative to the box of the object, (0, 0) at its top left, facing right.
#: Parts of the body get a common outline; marks (eyes, windows) are drawn on top without one. A part has a kind, the
#: name of its colour, points, and the width of a stroke as a fraction of the shorter side of the box.
SHAPES: dict[str, Any] = json.loads((Path(__file__).parent / "shapes.json").read_text(encoding="utf-8"))


def draw_background(name: str, side: int, rng: Rng) -> Image.Image:
    """Draw a background, in pale colours so that the objects stand out.

    Args:
        name: A key of ``BACKGROUNDS``.
        side: Side of the image in pixels.
        rng: Source of the random details: horizon, clouds, grass.

    Returns:
        A square RGB image.
    """
    (sky_top, sky_low), (land_top, land_low) = _PALETTE["backgrounds"][name].values()
    horizon = round(side * float(rng.uniform(0.46, 0.54)))
    rows = np.concatenate([np.linspace(sky_top, sky_low, horizon), np.linspace(land_top, land_low, side - horizon)])
    rows += rng.uniform(-6.0, 6.0, size=3)
    column = Image.fromarray(np.clip(rows, 0, 255).astype(np.uint8)[:, None, :])
    image = column.resize((side, side), Image.Resampling.NEAREST)
    _DETAILS[name](ImageDraw.Draw(image), side, horizon, rng)
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
    middle, right, low, frame = left + wide / 2, left + wide, top + wide, (250, 250, 250)
    draw.rectangle((left, top, right, low), fill=(198, 226, 244), outline=frame, width=side // 40)
    draw.line((middle, top, middle, low), fill=frame, width=side // 60)
    draw.line((left, top + wide / 2, right, top + wide / 2), fill=frame, width=side // 60)
    for y in np.arange(horizon + side * 0.07, side, side * 0.08):
        draw.line((0, y, side, y), fill=(176, 132, 90), width=2)
        for x in rng.uniform(0.0, side, size=3):
            draw.line((x, y, x, y + side * 0.08), fill=(176, 132, 90), width=2)


def _road(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    _clouds(draw, side, rng)
    _hill(draw, side, horizon, float(rng.uniform(0.1, 0.9)), (165, 200, 140))
    middle = side * float(rng.uniform(0.42, 0.58))
    left, right = middle - side * 0.06, middle + side * 0.06
    draw.polygon([(left, horizon), (right, horizon), (side * 1.1, side), (-side * 0.1, side)], fill=(150, 152, 158))
    for start in (0.08, 0.3, 0.62):
        top, low = (horizon + (side - horizon) * share for share in (start, start + 0.16 + start * 0.2))
        thin = side * (0.006 + 0.02 * start)
        mark = [(-thin, top), (thin, top), (thin * 1.3, low), (-thin * 1.3, low)]
        draw.polygon([(middle + x, y) for x, y in mark], fill=(245, 240, 225))


def _sea(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    _clouds(draw, side, rng)
    for x, y in rng.uniform((0.0, horizon / side + 0.03), (1.0, 1.0), size=(34, 2)) * side:
        reach = side * 0.035
        draw.arc((x - reach, y - reach / 2, x + reach, y + reach / 2), 190, 350, fill=(200, 228, 242), width=3)


def _desert(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    sun = float(rng.uniform(0.1, 0.8)) * side
    draw.ellipse((sun, side * 0.08, sun + side * 0.12, side * 0.2), fill=(255, 244, 205))
    tones = ((226, 178, 112), (236, 190, 124), (230, 184, 118))
    for centre, tone in zip(rng.uniform(0.0, 1.0, size=3), tones, strict=True):
        _hill(draw, side, horizon, float(centre), tone)
    _specks(draw, side, horizon, rng, (206, 160, 100), 70)
    x, low, tall = float(rng.uniform(0.05, 0.95)) * side, horizon + side * 0.03, side * 0.13
    draw.line((x, low, x, low - tall), fill=(122, 158, 104), width=side // 40)
    arms = [
        (x + tall * across, low - tall * up) for across, up in ((-0.35, 0.8), (-0.35, 0.45), (0.35, 0.45), (0.35, 0.9))
    ]
    draw.line(arms, fill=(122, 158, 104), width=side // 60)


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


#: The functions above by the names of the backgrounds.
_DETAILS = {one.__name__[1:]: one for one in (_meadow, _beach, _snow, _city, _room, _road, _sea, _desert)}
