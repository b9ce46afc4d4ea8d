"""What the caption metrics need of Java: the program itself, and the tokeniser that comes with ``pycocoevalcap``.

CIDEr-D: agreement of a caption with an image's captions in runs of words that are rare elsewhere.

METEOR and SPICE through the Java programs that ``pycocoevalcap`` brings or points to.

Scores of image-caption pairs that do not come from vectors: the metrics of image captioning.
"""

import math
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import check_choice, fail
from bcls._core.extras import require
from bcls.labels.encoders import Progress

# As pycocoevalcap has it, so that scores are those of the papers.
_PUNCTUATION = frozenset(
    ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"]
)


def java(metric: str) -> str:
    """The Java program.

    Raises:
        ValueError: If there is none.
    """
    found = shutil.which("java")
    if found is None:
        fail(metric, "Java", "no `java` on the path", "install a Java runtime, such as Debian's default-jre-headless")
    return found


def metrics_folder(metric: str) -> Path:
    """The folder of ``pycocoevalcap``, which holds the programs of the metrics.

    Raises:
        MissingExtraError: If it is not installed.
    """
    package = require("pycocoevalcap", "caption-metrics", f"the metric {metric!r}")
    return Path(next(iter(package.__path__)))


def ptb_tokens(metric: str, texts: Sequence[str]) -> list[str]:
    """Texts as lower-case words with spaces between and without punctuation, by Stanford's PTB tokeniser.

    Raises:
        ValueError: If there is no Java, or the tokeniser fails.
        MissingExtraError: If ``pycocoevalcap`` is not installed.
    """
    if not texts:
        return []
    jar = metrics_folder(metric) / "tokenizer" / "stanford-corenlp-3.4.1.jar"
    command = [java(metric), "-Dfile.encoding=UTF-8", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
    # A line a text: the library's own call does the same by way of a file in its package, which may not be writable.
    lines = "".join(" ".join(text.split()) + "\n" for text in texts)
    run = subprocess.run(  # noqa: S603 - our own words; texts go through standard input
        [*command, "-preserveLines", "-lowerCase", "-encoding", "UTF-8"],
        input=lines.encode(),
        capture_output=True,
        check=False,
    )
    split = run.stdout.decode().split("\n")[:-1]
    if run.returncode or len(split) != len(texts):
        got = f"{len(split)} lines for {len(texts)} texts: {run.stderr.decode(errors='replace').strip()[-200:]}"
        fail(metric, "the tokeniser's words of every text", got, "check that `java` runs")
    return [" ".join(word for word in line.split() if word not in _PUNCTUATION) for line in split]


_LONGEST = 4
# Standard deviation of the penalty for another length, in words.
_SIGMA = 6.0
_EVERY = 1000


class Cider:
    """CIDEr-D with the images' captions as corpus; see :class:`PairScorer`."""

    name = "cider"

    def pair_scores(
        self,
        texts: Sequence[str],
        image_of_caption: NDArray[np.int64],
        images: NDArray[np.int64],
        captions: NDArray[np.int64],
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Score the pairs; see :meth:`PairScorer.pair_scores`."""
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


# Pairs of one exchange with the program; scores of pairs do not depend on each other.
_AT_ONCE = 500


class _JavaMetric:
    """A metric of ``pycocoevalcap`` that is a Java program; see :class:`PairScorer`."""

    name: str

    def pair_scores(
        self,
        texts: Sequence[str],
        image_of_caption: NDArray[np.int64],
        images: NDArray[np.int64],
        captions: NDArray[np.int64],
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Score the pairs; see :meth:`PairScorer.pair_scores`."""
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
    """METEOR 1.5: words matched by form, stem, synonym and paraphrase; see :class:`PairScorer`."""

    name = "meteor"


class Spice(_JavaMetric):
    """SPICE: objects, attributes and relations in common; see :class:`PairScorer`.

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


class PairScorer(Protocol):
    """Scores a caption by the captions that an image has."""

    @property
    def name(self) -> str:
        """The name it was loaded by."""
        ...

    def pair_scores(
        self,
        texts: Sequence[str],
        image_of_caption: NDArray[np.int64],
        images: NDArray[np.int64],
        captions: NDArray[np.int64],
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Score pairs (image, caption). All captions of the image are references, the caption itself if it is one.

        Args:
            texts: C captions.
            image_of_caption: ``(C,)`` integers, whose caption each is.
            images: ``(P,)`` the image of each pair, in the numbers of ``image_of_caption``.
            captions: ``(P,)`` the caption of each pair, a place in ``texts``.
            progress: Called now and then with how many pairs are done, and how many there are.

        Returns:
            ``(P,)`` scores; higher is closer.

        Raises:
            ValueError: If a program that the metric needs is missing.
            MissingExtraError: If ``pycocoevalcap`` is not installed.
        """
        ...


_SCORERS: dict[str, Callable[[], PairScorer]] = {"cider": Cider, "meteor": Meteor, "spice": Spice}
#: Names that :func:`load_pair_scorer` knows.
SCORERS = tuple(_SCORERS)


def load_pair_scorer(name: str) -> PairScorer:
    """Load a metric of image captioning: ``"cider"``, ``"meteor"`` or ``"spice"``.

    Raises:
        ValueError: If there is no such metric, or a program that it needs is missing.
        MissingExtraError: If ``pycocoevalcap`` is not installed.

    Example:
        >>> load_pair_scorer("cider").name
        'cider'
    """
    return _SCORERS[check_choice("name", name, SCORERS)]()
