"""Ranks as a histogram: how many queries find their first correct item at which place."""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Sizes of the drawing, in units of which a narrow phone has about 340.
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 340, 86, 84, 15, 8


def bins(most: int) -> list[tuple[int, int]]:
    """Give first and last rank of each bin, up to ``most``: 1, 2 to 5, 6 to 10, and on by fives and tens.

    Example:
        >>> bins(120)
        [(1, 1), (2, 5), (6, 10), (11, 50), (51, 100), (101, 120)]
        >>> bins(1)
        [(1, 1)]
    """
    found, low, factor, last = [], 1, 5, 1
    while low <= most:
        found.append((low, min(last, most)))
        low, last, factor = last + 1, last * factor, 7 - factor
    return found


def histogram(title: str, ranks: Mapping[str, NDArray[Any]], items: int) -> str:
    """Draw the ranks of one model or of several side by side.

    Args:
        title: What is drawn.
        ranks: Ranks from 1 on by the class of their bars; without a query that does not count.
        items: How many items there are to rank.

    Returns:
        An SVG element whose text is readable as it is.
    """
    rows, top = [], 0
    for low, high in bins(items):
        name = f"{low:,}" if low == high else f"{low:,}–{high:,}"
        middle = top + _BAR * len(ranks) / 2
        rows.append(f'<text x="{_LEFT - 8}" y="{middle}" class="bin">{name}</text>')
        for kind, own in ranks.items():
            count = int(np.count_nonzero((own >= low) & (own <= high)))
            share = count / max(1, len(own))
            width = share * (_WIDTH - _LEFT - _RIGHT)
            text = f"{count:,} ({share:.1%})"
            rows.append(
                f'<rect x="{_LEFT}" y="{top}" width="{max(width, 1):.1f}" height="{_BAR - 1}" class="{kind}"/>'
                f'<text x="{_LEFT + width + 6:.1f}" y="{top + _BAR / 2}">{text}</text>'
            )
            top += _BAR
        top += _GAP
    return (
        f'<figure class="histogram"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {top}" role="img" aria-label="{escape(title)}">{"".join(rows)}</svg></figure>'
    )
