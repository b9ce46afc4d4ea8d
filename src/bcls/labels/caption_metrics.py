"""Caption metrics as labels: CIDEr-D, METEOR and SPICE scores of image-caption pairs."""

import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import check_choice, fail
from bcls._core.extras import require
from bcls.labels.encoders import Progress

Ids = NDArray[np.int64]

#: Names of the metrics.
SCORERS = ("cider", "meteor", "spice")


class PairScorer:
    """Scores a caption against the captions of an image.

    CIDEr-D is computed here, with the captions of the images as corpus. METEOR 1.5 (matches of words, stems, synonyms
    and paraphrases) and SPICE (objects, attributes and relations in common) are Java programs of ``pycocoevalcap``.

    Args:
        name: One of :data:`SCORERS`.

    Raises:
        ValueError: There is no such metric, Java is missing, or Stanford CoreNLP 3.6.0, which SPICE needs and no
            package contains.
        MissingExtraError: ``pycocoevalcap`` is not installed.
    """

    def __init__(self, name: str) -> None:
        self.name = check_choice("name", name, SCORERS)
        find_java(name)
        folder = metrics_folder(name) / name / "lib"
        if name == "spice":
            for file in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
                if not (folder / file).is_file():
                    hint = "copy it from stanford-corenlp-full-2015-12-09.zip of nlp.stanford.edu/software"
                    fail(name, f"Stanford CoreNLP in {folder / file}", "no such file", hint)

    def pair_scores(
        self, texts: Sequence[str], image_of_caption: Ids, images: Ids, captions: Ids, progress: Progress | None = None
    ) -> NDArray[np.float64]:
        """Score pairs (image, caption). All captions of the image are references, including the caption itself.

        Args:
            texts: C captions.
            image_of_caption: ``(C,)`` integers, the image of each caption.
            images: ``(P,)`` the image of each pair, a value of ``image_of_caption``.
            captions: ``(P,)`` the caption of each pair, an index of ``texts``.
            progress: Called from time to time with the number of pairs scored so far and in all.

        Returns:
            ``(P,)`` scores; higher is more similar.
        """
        words = ptb_tokens(self.name, texts)
        if self.name == "cider":
            score = CiderD([text.split() for text in words], image_of_caption).pairs
        else:
            library = require(f"pycocoevalcap.{self.name}.{self.name}", "caption-metrics", f"the metric {self.name!r}")
            score = partial(self._run, getattr(library, self.name.capitalize())(), words, image_of_caption)
        scores = np.empty(len(images))
        # The score of a pair does not depend on the other pairs of a call.
        for start in range(0, len(images), 500):
            part = slice(start, start + 500)
            scores[part] = score(images[part], captions[part])
            if progress is not None:
                progress(start + len(images[part]), len(images))
        return scores

    def _run(self, program: Any, words: Sequence[str], image_of_caption: Ids, images: Ids, captions: Ids) -> Any:
        own = [np.flatnonzero(image_of_caption == image).tolist() for image in images]
        gold = {pair: [words[row] for row in rows] for pair, rows in enumerate(own)}
        _, found = program.compute_score(gold, {pair: [words[caption]] for pair, caption in enumerate(captions)})
        # NaN means that there is nothing in common.
        return found if self.name == "meteor" else np.nan_to_num([one["All"]["f"] for one in found])


class CiderD:
    r"""CIDEr-D of pairs (image, caption) of tokenized captions.

    .. math::
        \frac{10}{4 K} \sum_{k=1}^{K} \sum_{n=1}^{4} e^{-(l(c) - l(s_k))^2 / 2 \sigma^2}
        \frac{\min(g^n(c), g^n(s_k)) \cdot g^n(s_k)}{\|g^n(c)\| \|g^n(s_k)\|}

    where :math:`g^n` are the counts of n-grams times :math:`\log(N / \text{images with the n-gram})`, over the N images
    that have captions, and :math:`l` is the number of bigrams, as in the original code.

    The smaller of two counts is the number of levels t = 1, 2, ... that both reach. With a column for each n-gram and
    level the clipped products are products of sparse matrices.

    Args:
        words: Tokens of each caption.
        image_of_caption: ``(C,)`` integers, the image of each caption.

    Reference:
        Vedantam et al., CIDEr: Consensus-based Image Description Evaluation, CVPR 2015.

    Example:
        >>> cider = CiderD([["a", "dog", "runs"], ["a", "dog"], ["two", "red", "cars"]], np.array([0, 0, 1]))
        >>> cider(np.array([0, 1]), np.array([1, 2])).round(2)
        array([[4.38, 0.  ],
               [0.  , 7.5 ]], dtype=float32)
    """

    def __init__(self, words: Sequence[Sequence[str]], image_of_caption: Ids) -> None:
        sparse = require("scipy.sparse", "caption-metrics", "the metric 'cider'")

        lengths = np.array([len(sentence) for sentence in words], np.int64)
        self._bigrams = np.maximum(lengths - 1, 0)
        self._order = np.argsort(image_of_caption, kind="stable")
        owners = image_of_caption[self._order]
        self._images, self._starts, self._counts = np.unique(owners, return_index=True, return_counts=True)
        vocabulary: dict[str, int] = {}
        tokens = np.array([vocabulary.setdefault(word, len(vocabulary)) for one in words for word in one], np.int64)
        caption = np.repeat(np.arange(len(words)), lengths)
        left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(tokens))  # tokens from here to the end
        grams, columns = tokens.copy(), 0
        parts: list[tuple[NDArray[Any], ...]] = [(tokens[:0], tokens[:0], np.empty(0), np.empty(0))]
        for size in range(1, _LONGEST + 1):
            here = np.flatnonzero(left >= size)  # where an n-gram begins
            if not len(here):
                break
            if size > 1:
                grams[here] = np.unique(grams[here] * len(vocabulary) + tokens[here + size - 1], return_inverse=True)[1]
            part, width = self._levels(caption[here], grams[here], image_of_caption)
            parts.append((part[0], part[1] + columns, *part[2:]))
            columns += width
        rows, places, candidates, references = (np.concatenate(one) for one in zip(*parts, strict=True))
        shape = len(words), max(columns, 1)
        self._candidates = sparse.csr_matrix((candidates, (rows, places)), shape)
        self._references = sparse.csr_matrix((references, (rows, places)), shape)

    def _levels(self, caption: Ids, grams: Ids, image_of_caption: Ids) -> tuple[tuple[NDArray[Any], ...], int]:
        """Rows, columns and values in the two matrices for n-grams of one length, and the number of columns."""
        number = int(grams.max()) + 1
        pairs, counts = np.unique(caption * number + grams, return_counts=True)
        rows, grams = pairs // number, pairs % number
        images_with = np.bincount(np.unique(image_of_caption[rows] * number + grams) % number, minlength=number)
        rarity = (np.log(len(self._images)) - np.log(images_with))[grams]
        squares = np.bincount(rows, (counts * rarity) ** 2, len(self._bigrams))
        candidates = rarity / np.sqrt(np.where(squares > 0, squares, np.inf))[rows]
        each = np.repeat(np.arange(len(rows)), counts)
        level = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
        highest = int(counts.max())
        entries = rows[each], grams[each] * highest + level, candidates[each], (counts * candidates)[each]
        return entries, number * highest

    def __call__(self, images: Ids, captions: Ids) -> NDArray[np.float32]:
        """Score all captions against all images.

        Args:
            images: ``(I,)`` images that have captions.
            captions: ``(P,)`` indices of ``words``.

        Returns:
            ``(I, P)`` scores, 0 to 10.
        """
        references, counts = self._captions_of(images)
        right = self._candidates[captions]
        used = np.unique(right.indices)  # few of all columns, and a product takes time for each
        shared = (self._references[references][:, used] @ right[:, used].T).toarray()
        scores = self._penalty(references[:, None], captions) * shared
        means: NDArray[np.float64] = np.add.reduceat(scores, np.cumsum(counts) - counts) / counts[:, None]
        return means.astype(np.float32)

    def pairs(self, images: Ids, captions: Ids) -> NDArray[np.float64]:
        """Score each caption against the image at the same index: ``(P,)`` scores, 0 to 10."""
        references, counts = self._captions_of(images)
        pair = np.repeat(np.arange(len(images)), counts)
        shared = self._references[references].multiply(self._candidates[captions[pair]]).sum(axis=1)
        scores = self._penalty(references, captions[pair]) * np.asarray(shared).ravel()
        return np.bincount(pair, scores, len(images)) / counts

    def _captions_of(self, images: Ids) -> tuple[Ids, Ids]:
        """Row numbers of the captions of the images, one image after another, and the number for each image."""
        place = np.searchsorted(self._images, images)
        counts = self._counts[place]
        ends = np.cumsum(counts)
        return self._order[np.arange(counts.sum()) + np.repeat(self._starts[place] - ends + counts, counts)], counts

    def _penalty(self, references: Ids, captions: Ids) -> NDArray[np.float64]:
        gap = self._bigrams[references] - self._bigrams[captions]
        return 10.0 / _LONGEST * np.exp(-(gap.astype(np.float64) ** 2) / (2 * _SIGMA**2))


# Longest n-grams, and standard deviation of the length penalty in words.
_LONGEST, _SIGMA = 4, 6.0


# The list of pycocoevalcap, so that scores are comparable with those of papers.
_PUNCTUATION = frozenset(
    ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"]
)


def ptb_tokens(metric: str, texts: Sequence[str]) -> list[str]:
    """Tokenize texts with Stanford's PTB tokenizer: lower-case words separated by spaces, without punctuation.

    Raises:
        ValueError: Java is missing, or the tokenizer fails.
        MissingExtraError: ``pycocoevalcap`` is not installed.
    """
    if not texts:
        return []
    jar = metrics_folder(metric) / "tokenizer" / "stanford-corenlp-3.4.1.jar"
    command = [find_java(metric), "-Dfile.encoding=UTF-8", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
    # One line per text. The library's own call uses a file in its package, which may not be writable.
    lines = "".join(" ".join(text.split()) + "\n" for text in texts)
    run = subprocess.run(  # noqa: S603 - fixed arguments; the texts are sent on standard input
        [*command, "-preserveLines", "-lowerCase", "-encoding", "UTF-8"],
        input=lines.encode(),
        capture_output=True,
        check=False,
    )
    split = run.stdout.decode().split("\n")[:-1]
    if run.returncode or len(split) != len(texts):
        got = f"{len(split)} lines for {len(texts)} texts: {run.stderr.decode(errors='replace').strip()[-200:]}"
        fail(metric, "one line of the tokenizer for every text", got, "check that `java` runs")
    return [" ".join(word for word in line.split() if word not in _PUNCTUATION) for line in split]


def find_java(metric: str) -> str:
    """Return the path of the Java program.

    Raises:
        ValueError: Java is not installed.
    """
    found = shutil.which("java")
    if found is None:
        fail(metric, "Java", "no `java` on the path", "install a Java runtime, such as Debian's default-jre-headless")
    return found


def metrics_folder(metric: str) -> Path:
    """Return the folder of ``pycocoevalcap``, which contains the programs of the metrics.

    Raises:
        MissingExtraError: It is not installed.
    """
    return Path(require("pycocoevalcap", "caption-metrics", f"the metric {metric!r}").__path__[0])
