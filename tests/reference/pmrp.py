"""Plausible-match R-precision, one query, one radius and one item at a time."""

import math


def pmrp(similarity, owner, codes, variant):
    """Give the two figures in percent, image to text first."""
    images, captions = range(len(similarity)), range(len(owner))
    unlabelled = {i for i in images if not any(codes[i])}
    radii = (0, 1, 2) if variant == "pcme" else (2,)
    figures = []
    for queries, items, score in (
        ([(i, i) for i in images], [(j, owner[j]) for j in captions], lambda i, j: similarity[i][j]),
        ([(j, owner[j]) for j in captions], [(i, i) for i in images], lambda j, i: similarity[i][j]),
    ):
        if variant == "pcme":
            items = [item for item in items if item[1] not in unlabelled]
        values = []
        for query, image in queries:
            if image in unlabelled:
                continue
            ranked = sorted(items, key=lambda item: (-score(query, item[0]), item[0]))
            for radius in radii:
                match = []
                for _, other in ranked:
                    apart = sum(a != b for a, b in zip(codes[image], codes[other], strict=True))
                    own = variant != "pcme" and other == image
                    match.append(apart <= radius and not own and other not in unlabelled)
                size = sum(match)
                if variant == "eccv50":
                    size = min(size, 50)
                if size:
                    values.append(sum(match[:size]) / size)
        figures.append(100 * sum(values) / len(values) if values else math.nan)
    return figures
