"""Which texts go through a model together: texts of like length, so that little of a batch is padding."""

import numpy as np
from numpy.typing import NDArray

#: Tokens of a batch, padding included. Larger batches leave the CPU's caches, smaller ones pay for each call.
TOKENS = 1024
# A batch of fewer texts costs more as a call of its own than its texts cost as padding of their neighbours' batch.
_FEW = 16


def group_by_length(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Put texts into batches, longest first, so that too little memory shows at once.

    A batch holds texts of one length; only where these are few does it go on with the next shorter ones. It has at most
    :data:`TOKENS` tokens, padding included; a longer text has a batch of its own.

    Args:
        lengths: ``(n,)`` number of tokens of each text.

    Returns:
        Rows of each batch; every row is in one.

    Example:
        >>> group_by_length(np.array([300, 900, 300, 300]))
        [array([1]), array([0, 2, 3])]
    """
    order = np.argsort(-lengths, kind="stable")
    sorted_lengths = lengths[order]
    # Where a run of equal lengths ends.
    ends = np.append(np.flatnonzero(np.diff(sorted_lengths)) + 1, len(order))
    batches = []
    start = 0
    while start < len(order):
        most = max(1, TOKENS // max(1, int(sorted_lengths[start])))
        run = int(ends[np.searchsorted(ends, start, side="right")])
        stop = min(start + most, max(run, start + _FEW), len(order))
        batches.append(order[start:stop])
        start = stop
    return batches
