"""Features that would poison training: not finite, or all zero."""

from collections.abc import Iterator

import numpy as np

from bcls.data.check.findings import Finding
from bcls.data.dataset import Dataset
from bcls.data.features import Features

_BLOCK = 256


def check_features(dataset: Dataset) -> Iterator[Finding]:
    """Read every feature file of a dataset once."""
    for name, files in dataset.manifest.features.items():
        for split in dataset.splits:
            if split not in files:
                yield Finding("not-checked", f"{name}/{split}", "no features for this split")
                continue
            part = dataset.split(split)
            try:
                features = part.features(name)
            except (ValueError, OSError) as error:
                yield Finding("bad-features", f"{name}/{split}", str(error))
                continue
            yield from _rows(part, name, features)


def _rows(dataset: Dataset, name: str, features: Features) -> Iterator[Finding]:
    for start in range(0, len(features), _BLOCK):
        places = range(start, min(start + _BLOCK, len(features)))
        told: set[tuple[str, str]] = set()  # a picture that cannot be read is one finding, not one a view
        for view in range(features.views):
            for finding in _view(dataset, name, features, places, view):
                if (finding.kind, finding.subject) not in told:
                    told.add((finding.kind, finding.subject))
                    yield finding


def _view(dataset: Dataset, name: str, features: Features, places: range, view: int) -> Iterator[Finding]:
    what = f"{name} of view {view}" if view else name
    block = features.take(places, view)
    block = block.reshape(len(block), -1, block.shape[-1])
    finite = np.asarray(np.isfinite(block).all(axis=(1, 2)))
    filled = np.asarray((block != 0).any(axis=2))
    for row, place in enumerate(places):
        image = dataset.image_ids[place]
        real = filled[row][: features.regions(place, view)]
        if not finite[row]:
            yield Finding("bad-features", image, f"{what} are not finite")
        elif not real.any():
            yield Finding("bad-features", image, f"{what} are all zero")
        elif not real.all():
            yield Finding("empty-regions", image, f"{int((~real).sum())} of {len(real)} regions of {what}")
