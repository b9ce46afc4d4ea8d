"""How the toys and the furniture look."""

import math

from bcls.data.synthetic.pen import DARK, LIGHT, METAL, WOOD, Pen, box

_BULB = (255, 236, 140)


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
