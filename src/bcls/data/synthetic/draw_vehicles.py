"""How the vehicles look."""

from bcls.data.synthetic.pen import DARK, GLASS, LIGHT, METAL, WOOD, Pen, box

_HEADLIGHT = (255, 240, 150)


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
