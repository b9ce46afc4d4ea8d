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
