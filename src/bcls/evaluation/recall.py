"""Recall at K, as the field counts it: a query is a hit when any gold item is among its first K."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_whole, fail
from bcls.evaluation._inputs import Matrix, check_image_of_caption, check_matrix
from bcls.evaluation._ranks import count_above, gold_targets
from bcls.evaluation.median import QueryRanks, recalls_of_ranks


def recalls(
    similarity: Matrix, image_of_caption: object, ks: Sequence[int] = (1, 5, 10), folds: int = 1
) -> dict[str, float]:
    r"""Compute the recalls at K of both directions and their sum.

    .. math::
        R@K = \frac{100}{|Q|} \sum_{q \in Q} [\min_{g \in G_q} \mathrm{rank}_q(g) \le K]

    where :math:`G_q` are the captions of image :math:`q` (image to text, over the images that have any) or the one
    image of caption :math:`q` (text to image). Ties rank the lower index first, as ``argsort(-s, kind="stable")``
    does. Nothing is sorted: the rank of the best gold item is one more than the number of items above it.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor, any scale.
        image_of_caption: ``(C,)`` integers, the row of each caption's image. An image may have any number of
            captions; one without captions is no query, but stays in the gallery.
        ks: The cut-offs K.
        folds: Average over this many consecutive folds of the images, each with its captions alone (COCO 1K is
            ``folds=5`` on the 5K test split).

    Returns:
        Percentages ``i2t_r{k}`` and ``t2i_r{k}`` for each K, and ``rsum``, the sum of them all.

    Raises:
        ValueError: If shapes, indices, ``ks`` or ``folds`` do not fit together, or a score is not finite.

    Example:
        >>> similarity = np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]])
        >>> recalls(similarity, [0, 1, 1], ks=(1, 2))
        {'i2t_r1': 50.0, 'i2t_r2': 100.0, 't2i_r1': 66.6..., 't2i_r2': 100.0, 'rsum': 316.6...}
    """
    check_matrix("similarity", similarity)
    images, captions = similarity.shape
    owner = check_image_of_caption(image_of_caption, images, captions)
    cut_offs = check_ks(ks)
    cuts = _cut_folds(owner, images, check_whole("folds", folds, least=1))
    of_images = gold_targets(similarity, owner, np.arange(captions), query="image")
    of_captions = gold_targets(similarity, owner, np.arange(captions), query="caption")
    ranks = []
    for rows, columns in cuts:
        (by_image,), (by_caption,) = count_above(similarity, rows, columns, [of_images], [of_captions])
        ranks.append(QueryRanks(np.where(of_images.asked()[rows], by_image + 1, 0), by_caption + 1))
    return recalls_of_ranks(ranks, cut_offs)


def check_ks(ks: object) -> list[int]:
    """Check that the cut-offs are different whole numbers above 0.

    Example:
        >>> check_ks((1, 5))
        [1, 5]
    """
    given = list(ks) if isinstance(ks, Sequence | np.ndarray) else []
    if not given or isinstance(ks, str):
        fail("ks", "a list of whole numbers above 0", repr(ks), "the field prints (1, 5, 10)")
    numbers = [check_whole("ks", k, least=1) for k in given]
    if len(set(numbers)) < len(numbers):
        fail("ks", "different numbers", repr(ks), "name each cut-off once")
    return numbers


def _cut_folds(owner: NDArray[np.int64], images: int, folds: int) -> list[tuple[slice, slice]]:
    """Cut the images, and the captions with them, into consecutive folds of equally many images."""
    if images % folds:
        fail("folds", f"a divisor of the {images} images", folds, "use folds=1 for the whole gallery")
    size = images // folds
    fold_of_caption = owner // size
    backwards = np.flatnonzero(np.diff(fold_of_caption) < 0)
    if folds > 1 and backwards.size:
        got = f"caption {backwards[0] + 1} of an earlier fold than caption {backwards[0]}"
        fail("image_of_caption", "captions grouped by fold", got, "sort the columns by image, or use folds=1")
    # With one fold there is nothing to group: all captions belong to it, in any order.
    starts = np.searchsorted(fold_of_caption, np.arange(folds + 1)) if folds > 1 else np.array([0, len(owner)])
    empty = np.flatnonzero(np.diff(starts) == 0)
    if empty.size:
        fail("folds", "folds with captions in each", f"fold {empty[0]} without any", "use fewer folds")
    return [(slice(f * size, (f + 1) * size), slice(int(starts[f]), int(starts[f + 1]))) for f in range(folds)]
