"""Regions of a grid, cell by cell."""

import math


def pool(grid, rows, columns):
    """grid[d][y][x] to a list of rows * columns vectors, each the mean of the cells that the region covers."""
    height, width = len(grid[0]), len(grid[0][0])
    regions = []
    for i in range(rows):
        for j in range(columns):
            ys = range(math.floor(i * height / rows), math.ceil((i + 1) * height / rows))
            xs = range(math.floor(j * width / columns), math.ceil((j + 1) * width / columns))
            cells = [(y, x) for y in ys for x in xs]
            regions.append([sum(channel[y][x] for y, x in cells) / len(cells) for channel in grid])
    return regions
