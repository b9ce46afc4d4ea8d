"""Features of one picture at a time, with nothing but the backbone."""

import numpy as np
import torch

from tests.reference.crops import ten_crop, zooms


def crop_features(backbone, image, boxes, mirrored):
    """One vector for each box, given as fractions of the sides: (boxes, D) float32."""
    found = []
    for left, upper, right, lower in boxes:
        edges = left * image.width, upper * image.height, right * image.width, lower * image.height
        cut = image.crop(tuple(map(round, edges))).resize((backbone.side, backbone.side), backbone.resample)
        pixels = torch.from_numpy(np.asarray(cut).transpose(2, 0, 1).copy())
        sides = [pixels, pixels.flip(2)] if mirrored else [pixels]
        with torch.no_grad():
            found.append(torch.stack([backbone(one[None])[0].mean((1, 2)) for one in sides]).mean(0))
    return torch.stack(found)


def features(backbone, image, view, rows):
    """The mean over the crops of (D,) where ``rows`` is None, else of (rows * rows, D); float32."""
    if view == "ten-crop":
        crops = torch.from_numpy(ten_crop(image, backbone.side, backbone.resample).copy())
    elif view == "six-crop":
        crops = torch.from_numpy(zooms(image, backbone.side, (1, 7 / 8, 3 / 4), backbone.resample)).float()
    else:
        square = image.resize((backbone.side, backbone.side), backbone.resample)
        crops = torch.from_numpy(np.asarray(square).transpose(2, 0, 1).copy())[None]
    found = []
    for crop in crops:
        with torch.no_grad():
            grid = backbone(crop[None])[0]
        if rows is None:
            found.append(grid.mean((1, 2)))
        else:
            step = grid.shape[1] // rows
            cells = [
                grid[:, y * step : (y + 1) * step, x * step : (x + 1) * step].mean((1, 2))
                for y in range(rows)
                for x in range(rows)
            ]
            found.append(torch.stack(cells))
    return torch.stack(found).mean(0)
