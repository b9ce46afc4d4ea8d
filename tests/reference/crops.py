"""Views of a picture, pixel by pixel."""

import numpy as np
from PIL import Image


def ten_crop(image, side, resample):
    """Resize the shorter side to side * 256 / 224, cut four corners and the middle, and mirror each; (10, 3, s, s)."""
    shorter = round(side * 256 / 224)
    width, height = image.size
    if width <= height:
        image = image.resize((shorter, int(shorter * height / width)), resample)
    else:
        image = image.resize((int(shorter * width / height), shorter), resample)
    width, height = image.size
    across, down = width - side, height - side
    corners = [(0, 0), (across, 0), (0, down), (across, down), (round(across / 2), round(down / 2))]
    cut = [image.crop((left, top, left + side, top + side)) for left, top in corners]
    cut += [one.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for one in cut]
    return np.stack([np.asarray(one).transpose(2, 0, 1) for one in cut])


def zooms(image, side, shares, resample):
    """The square picture, the middle of it drawn larger, and each mirrored, not rounded; (2 * shares, 3, s, s)."""
    square = np.asarray(image.resize((side, side), resample)).transpose(2, 0, 1).astype(float)
    seen = [_middle(square, share) for share in shares]
    return np.stack([*seen, *(one[:, :, ::-1] for one in seen)])


def _middle(square, share):
    side = square.shape[1]
    size = max(1, round(side * share))
    start = (side - size) // 2
    part = square[:, start : start + size, start : start + size]
    larger = np.empty_like(square)
    for row in range(side):
        for column in range(side):
            # The middle of a pixel, in pixels of the part; beyond the middle of its outer ones there is nothing new.
            y, x = (min(max((place + 0.5) * size / side - 0.5, 0), size - 1) for place in (row, column))
            top, left = int(y), int(x)
            below, right = min(top + 1, size - 1), min(left + 1, size - 1)
            upper = part[:, top, left] * (1 - x + left) + part[:, top, right] * (x - left)
            lower = part[:, below, left] * (1 - x + left) + part[:, below, right] * (x - left)
            larger[:, row, column] = upper * (1 - y + top) + lower * (y - top)
    return larger
