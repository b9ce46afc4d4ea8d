"""CIDEr-D: agreement of a caption with an image's captions in runs of words that are rare elsewhere."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bcls.labels._java import ptb_tokens
from bcls.labels.encoder import Progress

_LONGEST = 4
# Standard deviation of the penalty for another length, in words.
_SIGMA = 6.0
_EVERY = 1000


class Cider:
    """CIDEr-D with the images' captions as corpus; see :class:`bcls.labels.scorers.PairScorer`."""

    name = "cider"

    def pair_scores(
        self,
        texts: Sequence[str],
        image_of_caption: NDArray[np.int64],
        images: NDArray[np.int64],
        captions: NDArray[np.int64],
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Score the pairs; see :meth:`bcls.labels.scorers.PairScorer.pair_scores`."""
        words = [text.split() for text in ptb_tokens("cider", texts)]
        return cider_d(words, image_of_caption, images, captions, progress)


class _Vector(NamedTuple):
    weights: list[dict[tuple[str, ...], float]]
    norms: list[float]
    length: int


def cider_d(
    words: Sequence[Sequence[str]],
    image_of_caption: NDArray[np.int64],
    images: NDArray[np.int64],
    captions: NDArray[np.int64],
    progress: Progress | None = None,
) -> NDArray[np.float64]:
    r"""CIDEr-D of the pairs (image, caption) of tokenised captions.

    .. math::
        \frac{10}{4 K} \sum_{k=1}^{K} \sum_{n=1}^{4} e^{-(l(c) - l(s_k))^2 / 2 \sigma^2}
        \frac{\min(g^n(c), g^n(s_k)) \cdot g^n(s_k)}{\|g^n(c)\| \|g^n(s_k)\|}

    where :math:`g^n` are the counts of runs of n words times :math:`\log(N / \text{images with the run})`, over the N
    images that have captions, and :math:`l` counts runs of two words, as the original code does.

    Args:
        words: Tokens of each caption.
        image_of_caption: ``(C,)`` integers, whose caption each is.
        images: ``(P,)`` the image of each pair.
        captions: ``(P,)`` the caption of each pair, a place in ``words``.
        progress: Called now and then with the pairs done and their number.

    Returns:
        ``(P,)`` scores, 0 to 10.

    Reference:
        Vedantam et al., CIDEr: Consensus-based Image Description Evaluation, CVPR 2015.
    """
    references: dict[int, list[int]] = {}
    for row, image in enumerate(image_of_caption.tolist()):
        references.setdefault(image, []).append(row)
    counts = [_count(sentence) for sentence in words]
    seen: Counter[tuple[str, ...]] = Counter()
    for rows in references.values():
        seen.update({run for row in rows for runs in counts[row] for run in runs})
    corpus = math.log(len(references)) if references else 0.0
    rarity = {run: corpus - math.log(number) for run, number in seen.items()}
    vectors = [_weigh(runs, rarity) for runs in counts]
    scores = np.empty(len(images))
    for number, (image, caption) in enumerate(zip(images.tolist(), captions.tolist(), strict=True)):
        rows = references[image]
        scores[number] = sum(_similarity(vectors[caption], vectors[row]) for row in rows) / len(rows)
        if progress is not None and (number % _EVERY == _EVERY - 1 or number == len(scores) - 1):
            progress(number + 1, len(scores))
    return scores


def _count(words: Sequence[str]) -> list[Counter[tuple[str, ...]]]:
    return [
        Counter(tuple(words[first : first + size]) for first in range(len(words) - size + 1))
        for size in range(1, _LONGEST + 1)
    ]


def _weigh(counts: list[Counter[tuple[str, ...]]], rarity: dict[tuple[str, ...], float]) -> _Vector:
    weights = [{run: count * rarity[run] for run, count in runs.items()} for runs in counts]
    norms = [math.sqrt(sum(weight * weight for weight in runs.values())) for runs in weights]
    return _Vector(weights, norms, sum(counts[1].values()))


def _similarity(candidate: _Vector, reference: _Vector) -> float:
    total = 0.0
    for size in range(_LONGEST):
        scale = candidate.norms[size] * reference.norms[size]
        if scale:
            other = reference.weights[size]
            mine = candidate.weights[size].items()
            total += sum(min(weight, other[run]) * other[run] for run, weight in mine if run in other) / scale
    penalty = math.exp(-((candidate.length - reference.length) ** 2) / (2 * _SIGMA**2))
    return 10.0 / _LONGEST * penalty * total
