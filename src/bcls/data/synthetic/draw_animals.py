"""How the animals look."""

from bcls.data.synthetic.pen import DARK, LIGHT, Pen, box

_BEAK = (240, 160, 40)
_NOSE = (225, 120, 130)


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
