"""Spatial relations, read off the positions of the drawn boxes.

With ``dx = x_second − x_first`` and ``dy = y_second − y_first`` (y grows downwards), both as shares of the picture's
side, "first R second" earns

==========  ================================  ================================
R           1 (holds)                         0.5 (partly)
==========  ================================  ================================
left of     dx ≥ 0.15                         0.05 ≤ dx < 0.15
right of    −dx ≥ 0.15                        0.05 ≤ −dx < 0.15
above       dy ≥ 0.2                          0.1 ≤ dy < 0.2
below       −dy ≥ 0.2                         0.1 ≤ −dy < 0.2
next to     dx² + dy² ≤ 0.4²                  0.4² < dx² + dy² ≤ 0.55²
==========  ================================  ================================

and 0 otherwise.
"""

import numpy as np
import numpy.typing as npt

from bcls._core.errors import check_choice
from bcls.data.synthetic.scene import SceneObject
from bcls.data.synthetic.vocabulary import RELATIONS

SIDEWAYS_HOLDS, SIDEWAYS_PARTLY = 0.15, 0.05
UPRIGHT_HOLDS, UPRIGHT_PARTLY = 0.2, 0.1
NEAR_HOLDS, NEAR_PARTLY = 0.4, 0.55

Floats = npt.NDArray[np.float64]


def relation_credits(kind: str, dx: Floats, dy: Floats) -> Floats:
    """Return the credit of a relation for every pair of offsets, by the table above.

    Args:
        kind: A key of ``RELATIONS``.
        dx: ``x_second − x_first``.
        dy: ``y_second − y_first``, of the same shape.

    Returns:
        Values 0, 0.5 or 1 of that shape.
    """
    check_choice("kind", kind, RELATIONS)
    if kind == "next to":
        apart = dx * dx + dy * dy
        holds, partly = apart <= NEAR_HOLDS**2, apart <= NEAR_PARTLY**2
    else:
        margin = {"left of": dx, "right of": -dx, "above": dy, "below": -dy}[kind]
        sideways = kind in ("left of", "right of")
        holds = margin >= (SIDEWAYS_HOLDS if sideways else UPRIGHT_HOLDS)
        partly = margin >= (SIDEWAYS_PARTLY if sideways else UPRIGHT_PARTLY)
    # A relation that holds also holds partly, so the two halves add up to the credit.
    return 0.5 * holds + 0.5 * partly


def relations_that_hold(first: SceneObject, second: SceneObject) -> tuple[str, ...]:
    """Return the relations fully true of two objects, the first coming first.

    Example:
        >>> dog = SceneObject("dog", "brown", "middle", 0.2, 0.7)
        >>> relations_that_hold(dog, SceneObject("tree", "green", "large", 0.5, 0.6))
        ('left of', 'next to')
    """
    dx, dy = np.array(second.x - first.x), np.array(second.y - first.y)
    return tuple(kind for kind in RELATIONS if relation_credits(kind, dx, dy) == 1.0)
