"""Hubness of a gallery, and normalization against hubs by a query bank: inverted softmax and QB-Norm.

Hubs are items that many queries rank first. Normalized scores use more information than the model's own ranking, so
their recalls have separate keys and do not replace those of :func:`bcls.evaluation.recalls`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import bcls.evaluation.inputs as inputs
from bcls._core.errors import check_choice, check_number, check_whole, fail
from bcls.evaluation.inputs import BLOCK, Floats, Ids, Matrix, Values
from bcls.evaluation.recall import recalls


def hubness(similarity: Matrix, k: int = 10) -> dict[str, float]:
    r"""Compute the skewness of the k-occurrences of both galleries, with their extremes.

    .. math::
        S = \frac{\frac{1}{n} \sum_j (O_j - \bar O)^3}{\bigl(\frac{1}{n} \sum_j (O_j - \bar O)^2\bigr)^{3/2}}, \qquad
        O_j = |\{q : j \in T_q\}|

    where :math:`T_q` are the first k items of query q, equal scores with the lower index first (Radovanović et al.,
    2010). 0 means that all items occur equally often; image-text galleries with hubs reach values of several units.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        k: The number of items of each query, at most the smaller of N and C.

    Returns:
        For images as queries and captions as gallery ``i2t_skew{k}``, ``i2t_most{k}``, the highest occurrence, and
        ``i2t_never{k}``, the percentage of captions that no image has among its first k; the same with ``t2i`` for
        captions as queries. The skewness is nan if all occurrences are equal.

    Raises:
        ValueError: If ``similarity`` is not a matrix of finite numbers, or ``k`` is out of range.

    Example:
        >>> hubness(np.array([[0.9, 0.5, 0.1], [0.8, 0.5, 0.2], [0.7, 0.1, 0.2]]), k=1)
        {'i2t_skew1': 0.70..., 'i2t_most1': 3.0, 'i2t_never1': 66.6..., 't2i_skew1': 0.0, ...}
    """
    inputs.check_matrix("similarity", similarity)
    images, captions = similarity.shape
    first = check_whole("k", k, least=1)
    if first > min(images, captions):
        fail("k", f"at most {min(images, captions)}, the smaller gallery", first, "lower it")

    def top(scores: Floats, *_ids: Ids) -> Values:
        return inputs.top_items(np.ascontiguousarray(scores), first).T.astype(np.float64)

    i2t, t2i = inputs.by_query(top, similarity=similarity)
    return _occurrence_metrics("i2t", i2t, captions, first) | _occurrence_metrics("t2i", t2i, images, first)


def _occurrence_metrics(direction: str, top: Values, items: int, k: int) -> dict[str, float]:
    occurrence = np.bincount(top.astype(np.int64).ravel(), minlength=items).astype(np.float64)
    gap = occurrence - occurrence.mean()
    spread = float((gap**2).mean())
    return {
        f"{direction}_skew{k}": float((gap**3).mean()) / spread**1.5 if spread > 0 else float("nan"),
        f"{direction}_most{k}": float(occurrence.max()),
        f"{direction}_never{k}": 100.0 * float(np.mean(occurrence == 0)),
    }


def inverted_softmax(similarity: Matrix, bank: Matrix, query: str, *, beta: float = 20.0) -> Floats:
    r"""Lower the scores of items that score high with many queries of a bank.

    .. math::
        s'(q, g) = s(q, g) - \frac{1}{\beta} \log \sum_{b} e^{\beta s(b, g)}

    This orders the items of every query as :math:`e^{\beta s(q, g)} / \sum_b e^{\beta s(b, g)}` does (Smith et al.,
    2017), in the unit of the scores and without overflow.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        bank: Scores of other queries, for instance of the training split, with the same gallery: ``(N, B)`` for
            captions as queries, ``(B, C)`` for images as queries. The test queries themselves can be used too; each
            query then depends on the others.
        query: ``"caption"`` for text to image, ``"image"`` for image to text.
        beta: The inverse temperature; 20 suits cosines.

    Returns:
        ``(N, C)`` scores, valid for that direction only.

    Raises:
        ValueError: If shapes do not match, or a value is not finite.

    Example:
        >>> inverted_softmax(np.array([[0.5], [0.4]]), np.array([[0.9, 0.8], [0.1, 0.2]]), "caption").round(2)
        array([[-0.41],
               [ 0.19]])
    """
    return _normalized(similarity, bank, query, beta, None)[0]


def qb_norm(
    similarity: Matrix, bank: Matrix, query: str, *, beta: float = 20.0, k: int = 1
) -> tuple[Floats, NDArray[np.bool_]]:
    """Apply :func:`inverted_softmax` only to queries whose first item is a hub (Bogolin et al., 2022).

    Hubs are the items that are among the first k of some query of the bank. With the test queries themselves as bank,
    every query is normalized.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        bank: As for :func:`inverted_softmax`.
        query: ``"caption"`` for text to image, ``"image"`` for image to text.
        beta: The inverse temperature; 20 suits cosines.
        k: The number of first items of each query of the bank that count as hubs.

    Returns:
        ``(N, C)`` scores, valid for that direction only, and a mask of the normalized queries.

    Raises:
        ValueError: If shapes do not match, or a value is not finite.

    Example:
        >>> similarity, bank = np.array([[0.5, 0.1], [0.4, 0.3]]), np.array([[0.9, 0.8], [0.1, 0.2]])
        >>> adjusted, touched = qb_norm(similarity, bank, "caption")
        >>> touched.tolist(), adjusted.argmax(axis=0).tolist()
        ([True, False], [1, 1])
    """
    return _normalized(similarity, bank, query, beta, check_whole("k", k, least=1))


def qb_norm_recalls(
    similarity: Matrix,
    image_of_caption: object,
    image_bank: Matrix,
    caption_bank: Matrix,
    ks: Sequence[int] = (1, 5, 10),
    *,
    beta: float = 20.0,
    dynamic: bool = True,
) -> dict[str, float]:
    """Compute recall at K after normalization, under separate names.

    Args:
        similarity: ``(N, C)`` scores of N images and C captions, array or tensor.
        image_of_caption: ``(C,)`` integers, the row of each caption's image.
        image_bank: ``(B, C)`` scores of other images with the captions.
        caption_bank: ``(N, B)`` scores of other captions with the images.
        ks: The cut-offs K.
        beta: The inverse temperature; 20 suits cosines.
        dynamic: Use :func:`qb_norm`; otherwise :func:`inverted_softmax` for all queries.

    Returns:
        Percentages ``i2t_{name}_r{k}`` and ``t2i_{name}_r{k}``, their sum ``{name}_rsum``, and the percentage of
        queries that were normalized, ``i2t_{name}_share`` and ``t2i_{name}_share``; the name is ``qbnorm``, or
        ``isoftmax`` if not ``dynamic``.

    Raises:
        ValueError: If shapes, indices or ``ks`` do not match, or a value is not finite.

    Example:
        >>> similarity = np.array([[0.9, 0.8, 0.7], [0.2, 0.5, 0.1], [0.3, 0.1, 0.6]])
        >>> metrics = qb_norm_recalls(similarity, [0, 1, 2], similarity, similarity, ks=(1,))
        >>> metrics["i2t_qbnorm_r1"], metrics["t2i_qbnorm_r1"], metrics["qbnorm_rsum"]
        (100.0, 100.0, 200.0)
    """
    name = "qbnorm" if dynamic else "isoftmax"
    metrics: dict[str, float] = {}
    shares: dict[str, float] = {}
    total = 0.0
    for direction, query, bank in (("i2t", "image", image_bank), ("t2i", "caption", caption_bank)):
        adjusted, touched = _normalized(similarity, bank, query, beta, 1 if dynamic else None)
        values = recalls(adjusted, image_of_caption, ks)
        metrics |= {f"{direction}_{name}_r{k}": values[f"{direction}_r{k}"] for k in ks}
        shares[f"{direction}_{name}_share"] = 100.0 * float(touched.mean())
        total += sum(values[f"{direction}_r{k}"] for k in ks)
    return metrics | {f"{name}_rsum": total} | shares


def _normalized(
    similarity: Matrix, bank: Matrix, query: str, beta: float, k: int | None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Compute the result of :func:`qb_norm`; without ``k`` every query is normalized."""
    check_choice("query", query, ("caption", "image"))
    slope = check_number("beta", beta, "20 suits cosines", above=0)
    inputs.check_matrix("similarity", similarity)
    inputs.check_matrix("bank", bank)
    scores = inputs.read_rows("similarity", similarity, slice(0, similarity.shape[0]))
    others = inputs.read_rows("bank", bank, slice(0, bank.shape[0]))
    if query == "caption":  # queries in rows, the gallery in columns
        scores, others = scores.T, others.T
    items = scores.shape[1]
    if others.shape[1] != items:
        form = f"({items}, B)" if query == "caption" else f"(B, {items})"
        expected = f"shape {form}, the gallery of `similarity`"
        fail("bank", expected, tuple(bank.shape), "rows are images in a bank as well")
    highest = others.max(axis=0).astype(np.float64)
    total, hubs = np.zeros(items), np.full(items, k is None)
    for part in inputs.blocks(len(others), BLOCK // items):
        total += np.exp(slope * (others[part].astype(np.float64) - highest)).sum(axis=0)
        if k is not None:
            hubs[inputs.top_items(others[part], min(k, items))] = True
    touched = hubs[scores.argmax(axis=1)]
    penalty = (highest + np.log(total) / slope).astype(scores.dtype)
    adjusted = scores.copy()
    np.subtract(adjusted, penalty, out=adjusted, where=touched[:, None])
    return (adjusted if query == "image" else adjusted.T), touched
