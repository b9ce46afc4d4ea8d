"""SCAN's format: caption lines, ids, and the header of the features."""

from functools import partial

import numpy as np

from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import imported, put
from tests.fuzz.readers.arrays import damage_npy, npy

_WHOLE = {
    "train_caps.txt": b"".join(b"caption %d\n" % number for number in range(10)),
    "train_ids.txt": b"7\n8\n",
    "train_ims.npy": npy(np.ones((2, 3, 4), np.float32)),
}


def read(name, content, folder):
    source = folder / f"of {name}"
    for other, whole in _WHOLE.items():
        if not (source / other).exists():
            put(source, other, whole)
    dataset = imported("scan", put(source, name, content).parent, folder)
    if name == "train_ims.npy" and dataset.feature_names:
        dataset.features("regions").take([0])


READERS = (
    Reader("scan captions", lambda: [_WHOLE["train_caps.txt"]], partial(read, "train_caps.txt")),
    Reader("scan ids", lambda: [_WHOLE["train_ids.txt"], b"7\n" * 5 + b"8\n" * 5], partial(read, "train_ids.txt")),
    Reader("scan features", lambda: [_WHOLE["train_ims.npy"]], partial(read, "train_ims.npy"), damage_npy),
)
