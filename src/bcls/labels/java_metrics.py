"""METEOR and SPICE through the Java programs that ``pycocoevalcap`` brings or points to."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls._extras import require
from bcls.labels._java import java, metrics_folder, ptb_tokens
from bcls.labels.encoder import Progress

# Pairs of one exchange with the program; scores of pairs do not depend on each other.
_AT_ONCE = 500


class _JavaMetric:
    """A metric of ``pycocoevalcap`` that is a Java program; see :class:`bcls.labels.scorers.PairScorer`."""

    name: str

    def pair_scores(
        self,
        texts: Sequence[str],
        image_of_caption: NDArray[np.int64],
        images: NDArray[np.int64],
        captions: NDArray[np.int64],
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Score the pairs; see :meth:`bcls.labels.scorers.PairScorer.pair_scores`."""
        words = ptb_tokens(self.name, texts)
        library = require(f"pycocoevalcap.{self.name}.{self.name}", "caption-metrics", f"the metric {self.name!r}")
        program = getattr(library, self.name.capitalize())()
        scores = np.empty(len(images))
        for start, gold, said in _exchanges(words, image_of_caption, images, captions):
            _, part = program.compute_score(gold, said)
            scores[start : start + len(part)] = self._numbers(part)
            if progress is not None:
                progress(start + len(part), len(images))
        return scores

    def _numbers(self, part: Sequence[Any]) -> Any:
        """What the program answers for some pairs, as numbers."""
        return part


class Meteor(_JavaMetric):
    """METEOR 1.5: words matched by form, stem, synonym and paraphrase; see :class:`bcls.labels.scorers.PairScorer`."""

    name = "meteor"


class Spice(_JavaMetric):
    """SPICE: objects, attributes and relations in common; see :class:`bcls.labels.scorers.PairScorer`.

    Raises:
        ValueError: If Stanford CoreNLP 3.6.0, which no package brings, is not where SPICE looks for it.
    """

    name = "spice"

    def __init__(self) -> None:
        java(self.name)
        folder = metrics_folder(self.name) / "spice" / "lib"
        for file in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
            if not (folder / file).is_file():
                remedy = "put it there from stanford-corenlp-full-2015-12-09.zip of nlp.stanford.edu/software"
                fail(self.name, f"Stanford CoreNLP in {folder / file}", "no such file", remedy)

    def _numbers(self, part: Sequence[Any]) -> Any:
        """Its figures, sorted by the number of the pair as the program gives them; no tuples are no agreement."""
        return np.nan_to_num([one["All"]["f"] for one in part])


def _exchanges(
    words: Sequence[str],
    image_of_caption: NDArray[np.int64],
    images: NDArray[np.int64],
    captions: NDArray[np.int64],
) -> Iterator[tuple[int, dict[int, list[str]], dict[int, list[str]]]]:
    """References and candidates of the pairs, some at a time, in the form that ``pycocoevalcap`` takes."""
    references: dict[Any, list[str]] = {}
    for row, image in enumerate(image_of_caption.tolist()):
        references.setdefault(image, []).append(words[row])
    pairs = list(zip(images.tolist(), captions.tolist(), strict=True))
    for start in range(0, len(pairs), _AT_ONCE):
        part = dict(enumerate(pairs[start : start + _AT_ONCE]))
        yield (
            start,
            {number: references[image] for number, (image, _) in part.items()},
            {number: [words[caption]] for number, (_, caption) in part.items()},
        )
