"""Two models on one split: their recalls, the differences, and whether these could be chance."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail

if TYPE_CHECKING:
    from bcls.data import Dataset
    from bcls.evaluation import QueryRanks

KS = (1, 5, 10)


def compare(split: "Dataset", a: "QueryRanks", b: "QueryRanks", *, seed: int = 0) -> dict[str, float]:
    """Compare two models by the ranks of their queries.

    The tests draw and exchange whole images with their captions, which are not independent.

    Args:
        split: Images and captions.
        a: :func:`bcls.evaluation.query_ranks` of one model.
        b: Of the other.
        seed: Of the tests.

    Returns:
        For each recall and ``rsum`` the two values ``a_{figure}`` and ``b_{figure}`` and ``difference_{figure}``, a
        less b; for ``i2t_r1``, ``t2i_r1`` and ``rsum`` the 95 % interval ``difference_{figure}_low`` and ``_high``
        and the p-value ``p_{figure}`` of a permutation test; for the first places ``i2t_disagree`` and
        ``t2i_disagree``, the queries that one model alone gets right, of them ``i2t_only_a`` and ``i2t_only_b``.

    Raises:
        ValueError: If there is not one rank for each image and each caption of the split.
    """
    from bcls.evaluation import paired_test
    from bcls.evaluation.median import recalls_of_ranks

    for argument, ranks in (("a", a), ("b", b)):
        counts, came = (len(split.images), len(split.captions)), (len(ranks.i2t), len(ranks.t2i))
        if came != counts:
            expected = f"ranks of the split's {counts[0]} images and {counts[1]} captions"
            fail(argument, expected, f"{came[0]} and {came[1]}", "take the ranks of this very split")
    owner = split.image_of_caption
    asked = np.flatnonzero(a.i2t > 0)
    first, second = recalls_of_ranks([a], KS), recalls_of_ranks([b], KS)
    figures = {f"a_{key}": value for key, value in first.items()}
    figures |= {f"b_{key}": value for key, value in second.items()}
    figures |= {f"difference_{key}": first[key] - second[key] for key in first}
    # Those in between move with these.
    pairs = {
        "i2t_r1": (100.0 * (a.i2t[asked] <= 1), 100.0 * (b.i2t[asked] <= 1), asked),
        "t2i_r1": (100.0 * (a.t2i <= 1), 100.0 * (b.t2i <= 1), owner),
        "rsum": (_shares(a, owner), _shares(b, owner), asked),
    }
    for key, (left, right, groups) in pairs.items():
        test = paired_test(left, right, groups, seed=seed)
        figures |= {f"difference_{key}_{end}": test[f"difference_{end}"] for end in ("low", "high")}
        figures[f"p_{key}"] = test["p_value"]
    return figures | _disagreements("i2t", a.i2t, b.i2t) | _disagreements("t2i", a.t2i, b.t2i)


def _shares(ranks: "QueryRanks", owner: NDArray[np.int64]) -> NDArray[np.float64]:
    """Split the sum of the recalls among the images that are queries, so that its mean over them is the sum."""
    asked = ranks.i2t > 0
    by_image = sum((ranks.i2t[asked] <= k).astype(np.float64) for k in KS)
    hits = np.sum([ranks.t2i <= k for k in KS], axis=0)
    by_caption = np.bincount(owner, hits, minlength=len(ranks.i2t))[asked]
    shares: NDArray[np.float64] = 100.0 * (by_image + by_caption * (np.count_nonzero(asked) / len(owner)))
    return shares


def _disagreements(direction: str, a: NDArray[Any], b: NDArray[Any]) -> dict[str, float]:
    # Rank 0 is an image without captions: both models have it, so that it is in neither count.
    only_a, only_b = int(np.count_nonzero((a <= 1) & (b > 1))), int(np.count_nonzero((b <= 1) & (a > 1)))
    return {
        f"{direction}_disagree": float(only_a + only_b),
        f"{direction}_only_a": float(only_a),
        f"{direction}_only_b": float(only_b),
    }
