"""What the rank of a query is the rank of."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = NDArray[np.int64]


class Targets(NamedTuple):
    """The best gold item of each query: its score, plus infinity for a query without one, and its index or -1."""

    score: NDArray[Any]
    item: Ids

    def asked(self) -> NDArray[np.bool_]:
        """Tell which queries have a gold item."""
        return self.item >= 0
