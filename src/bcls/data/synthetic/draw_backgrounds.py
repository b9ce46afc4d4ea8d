"""How the backgrounds look: pale, so that the objects in front stand out."""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from bcls.data.synthetic.pen import Colour

Rng = np.random.Generator
Draw = ImageDraw.ImageDraw

_WHITE: Colour = (255, 255, 255)
_SKY = ((150, 200, 245), (222, 238, 250))


def draw_background(name: str, side: int, rng: Rng) -> Image.Image:
    """Return a square picture of an empty place.

    Args:
        name: A key of ``BACKGROUNDS``.
        side: Side of the picture in pixels.
        rng: Decides the horizon, clouds, tufts and the like.

    Returns:
        An RGB image.
    """
    (sky_top, sky_low), (land_top, land_low), details = _PLACES[name]
    horizon = round(side * float(rng.uniform(0.46, 0.54)))
    rows = np.concatenate([_fade(sky_top, sky_low, horizon), _fade(land_top, land_low, side - horizon)])
    rows += rng.uniform(-6.0, 6.0, size=3)
    column = Image.fromarray(np.clip(rows, 0, 255).astype(np.uint8)[:, None, :])
    picture = column.resize((side, side), Image.Resampling.NEAREST)
    details(ImageDraw.Draw(picture), side, horizon, rng)
    return picture


def _fade(top: Colour, low: Colour, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
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
    draw.line(foam, fill=_WHITE, width=max(2, side // 50))
    _specks(draw, side, horizon + side * 0.14, rng, (214, 190, 140), 120)


def _snow(draw: Draw, side: int, horizon: int, rng: Rng) -> None:
    for centre in rng.uniform(0.0, 1.0, size=3):
        peak, half = horizon - side * 0.22, side * 0.28
        x = float(centre) * side
        draw.polygon([(x - half, horizon), (x, peak), (x + half, horizon)], fill=(176, 190, 208))
        draw.polygon([(x - half * 0.3, peak + side * 0.066), (x, peak), (x + half * 0.3, peak + side * 0.066)], _WHITE)
    for x, y in rng.uniform(0.0, side, size=(50, 2)):
        draw.ellipse((x, y, x + side * 0.014, y + side * 0.014), fill=_WHITE)
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


_Details = Callable[[Draw, int, int, Rng], None]
_PLACES: dict[str, tuple[tuple[Colour, Colour], tuple[Colour, Colour], _Details]] = {
    "meadow": (_SKY, ((166, 214, 130), (128, 190, 100)), _meadow),
    "beach": (_SKY, ((240, 218, 168), (232, 206, 150)), _beach),
    "snow": (((186, 200, 216), (224, 232, 240)), ((232, 238, 246), _WHITE), _snow),
    "city": (((14, 18, 48), (44, 48, 92)), ((74, 76, 92), (56, 58, 74)), _city),
    "room": (((244, 226, 206), (240, 220, 198)), ((206, 160, 114), (190, 144, 100)), _room),
    "road": (_SKY, ((184, 214, 150), (160, 196, 128)), _road),
    "sea": (_SKY, ((104, 174, 214), (54, 122, 176)), _sea),
    "desert": (((250, 206, 140), (253, 230, 186)), ((238, 196, 130), (226, 176, 106)), _desert),
}
