"""Plausible-match R-precision, in the three variants that are in use and cannot be compared with each other."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_choice, fail
from bcls.evaluation._inputs import (
    Floats,
    Matrix,
    as_array,
    check_image_of_caption,
    check_matrix,
    read_rows,
    to_floats,
)
from bcls.evaluation._order import top_items
from bcls.evaluation._queries import BLOCK, all_parts, mean


class _Variant(NamedTuple):
    radii: tuple[int, ...]
    drop_unlabelled: bool
    omit_own: bool
    depth: int | None


_VARIANTS = {
    "pcme": _Variant((0, 1, 2), drop_unlabelled=True, omit_own=False, depth=None),
    "eccv": _Variant((2,), drop_unlabelled=False, omit_own=True, depth=None),
    "eccv50": _Variant((2,), drop_unlabelled=False, omit_own=True, depth=50),
}


def pmrp(similarity: Matrix, image_of_caption: object, codes: object, variant: str) -> dict[str, float]:
    r"""Compute the plausible-match R-precision of both directions, in the variant that is named.

    .. math::
        RP_q = \frac{|\{\pi(1), \dots, \pi(R)\} \cap M_q|}{R}, \qquad
        M_q = \{j : \mathrm{Hamming}(c_q, c_j) \le \zeta\}, \qquad R = |M_q|

    where :math:`c` are the classes of objects in an image, a caption has those of its image, and :math:`\pi` orders
    the gallery of q by score, equal scores with the lower index first. An image without any class has no label.

    - ``"pcme"`` (Chun et al., 2021): the mean over :math:`\zeta` = 0, 1, 2; unlabelled images and their captions are
      neither queries nor in the gallery.
    - ``"eccv"`` (the package ``eccv_caption``): :math:`\zeta` = 2; the query's own image, or its own captions, are no
      match; unlabelled images are no queries but stay in the gallery.
    - ``"eccv50"`` (Chun et al., 2022): the same with R at most 50.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        image_of_caption: ``(C,)`` integers, the row of each caption's image.
        codes: ``(N, L)`` 0 or 1, which of L classes are in each image.
        variant: One of the three.

    Returns:
        Percentages ``i2t_pmrp_{variant}`` and ``t2i_pmrp_{variant}``, over the queries with a match (and
        the radii at which they have one), and ``pmrp_unlabelled``, how many images have no class. The mean of nothing
        is nan.

    Raises:
        ValueError: If shapes or indices do not fit together, codes are not 0 or 1, or a score is not finite.

    Example:
        >>> codes = np.array([[1, 0, 0, 0], [0, 1, 1, 1]])
        >>> pmrp(np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]]), [0, 1, 1], codes, "pcme")
        {'i2t_pmrp_pcme': 75.0, 't2i_pmrp_pcme': 66.6..., 'pmrp_unlabelled': 0.0}
    """
    check_matrix("similarity", similarity)
    images, captions = similarity.shape
    owner = check_image_of_caption(image_of_caption, images, captions)
    bits = _check_codes(codes, images)
    rules = _VARIANTS[check_choice("variant", variant, _VARIANTS)]
    labelled = np.flatnonzero(bits.any(axis=1))
    in_gallery = labelled if rules.drop_unlabelled else np.arange(images)
    caption_gallery = np.flatnonzero(np.isin(owner, in_gallery))

    def rows(part: slice) -> NDArray[np.float64]:
        queries = np.arange(part.start, part.stop)
        scores = read_rows("similarity", similarity, part)[:, caption_gallery]
        return _r_precisions(scores, bits, queries, owner[caption_gallery], rules)

    def columns(part: slice) -> NDArray[np.float64]:
        scores = to_floats(similarity[:, part]).T[:, in_gallery]
        return _r_precisions(scores, bits, owner[part], in_gallery, rules)

    i2t = all_parts(rows, images, BLOCK // captions)
    t2i = all_parts(columns, captions, BLOCK // images)
    figures = {f"i2t_pmrp_{variant}": 100.0 * mean(i2t), f"t2i_pmrp_{variant}": 100.0 * mean(t2i)}
    return figures | {"pmrp_unlabelled": float(images - len(labelled))}


def _check_codes(value: object, images: int) -> NDArray[np.float32]:
    codes = as_array("codes", value)
    if codes.ndim != 2 or len(codes) != images:
        fail(
            "codes",
            f"a matrix of {images} rows, one an image",
            f"shape {codes.shape}",
            "give the classes of each image",
        )
    if not np.isin(codes, (0, 1)).all():
        fail("codes", "0 or 1", "other values", "give 1 for a class that is in the image and 0 for one that is not")
    return codes.astype(np.float32)


def _r_precisions(
    scores: Floats, bits: NDArray[np.float32], queries: NDArray[np.int64], items: NDArray[np.int64], rules: _Variant
) -> NDArray[np.float64]:
    """Compute a row of values for each radius, nan where a query has no match; all are given by their images."""
    out = np.full((len(rules.radii), len(queries)), np.nan)
    asked = np.flatnonzero(bits[queries].any(axis=1))
    if not (len(asked) and len(items)):
        return out
    mine, sizes = bits[queries[asked]], bits.sum(axis=1)
    distance = (mine.sum(axis=1)[:, None] + sizes - 2 * (mine @ bits.T))[:, items]
    order = top_items(scores[asked], len(items))
    for place, radius in enumerate(rules.radii):
        match = distance <= radius
        match &= bits[items].any(axis=1)
        if rules.omit_own:
            match &= queries[asked, None] != items
        count = match.sum(axis=1)
        size = count if rules.depth is None else np.minimum(count, rules.depth)
        found = np.take_along_axis(match, order, axis=1) & (np.arange(len(items)) < size[:, None])
        out[place, asked] = np.divide(found.sum(axis=1), size, out=np.full(len(asked), np.nan), where=size > 0)
    return out
