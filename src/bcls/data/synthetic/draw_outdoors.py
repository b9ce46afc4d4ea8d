"""How the plants and the buildings look."""

import math

from bcls.data.synthetic.pen import CREAM, DARK, GLASS, LIGHT, STEM, WOOD, Pen, box

_CENTRE = (250, 205, 50)


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
    # A yellow or white flower keeps a centre that can be told from its petals.
    centre = WOOD if min(pen.colour[:2]) > 180 else _CENTRE
    pen.mark_ellipse(0.35, 0.21, 0.65, 0.41, centre)


def mushroom(pen: Pen) -> None:
    """A mushroom: a spotted cap on a thick pale stalk."""
    pen.polygon([(0.37, 0.5), (0.63, 0.5), (0.7, 1.0), (0.3, 1.0)], CREAM)
    dome = [(0.5 + 0.5 * math.cos(angle), 0.58 + 0.58 * math.sin(angle)) for angle in _arc(180, 360, 14)]
    pen.polygon([*dome, (0.8, 0.66), (0.2, 0.66)])
    # White spots would not show on a white cap.
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
