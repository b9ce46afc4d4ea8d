"""Figures against graded labels that a text encoder makes from the captions of the split."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcls._checks import check_whole, fail
from bcls._progress import progress

if TYPE_CHECKING:
    from bcls.data import Dataset

#: Bytes of labels that are held in memory; more go to a temporary file.
IN_MEMORY = 1 << 30
#: Bytes of labels that are made at once.
_AT_ONCE = 1 << 27
#: K of the coherent score where nobody says otherwise.
_USUAL_K = 100


class CaptionVectors:
    """Embeddings of the captions of a split, made once and when first asked for.

    Args:
        split: Images and captions.
        encoder: Name for :func:`bcls.labels.load_text_encoder`.
    """

    def __init__(self, split: "Dataset", encoder: str) -> None:
        self._split, self.encoder = split, encoder

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """``(C, d)`` unit rows.

        Raises:
            ValueError: If there is no such encoder.
            MissingExtraError: If its packages are not installed.
        """
        from bcls.labels import load_text_encoder

        try:
            model = load_text_encoder(self.encoder)
        except ValueError as error:
            # It speaks of its own argument; who reads this wrote a flag.
            raise ValueError(str(error).replace("`name`", "`--labels`", 1)) from error
        with progress(f"captions by {self.encoder}", len(set(self._split.texts))) as step:
            return model.encode(self._split.texts, progress=lambda done, _: step(done))


def graded_figures(
    split: "Dataset", similarity: NDArray[Any], captions: CaptionVectors, k: int | None = None
) -> dict[str, float]:
    """Compute Kendall's tau, nDCG and the coherent score against labels from captions.

    Tau and nDCG take all captions, and nDCG counts labels below 0 as 0. The coherent score takes the first caption of
    each image, as its authors do.

    Args:
        split: Images and captions.
        similarity: ``(N, C)`` scores.
        captions: Of the same split.
        k: Of the coherent score; 100, or all images of a smaller split.

    Returns:
        The figures of :func:`bcls.evaluation.kendall`, :func:`~bcls.evaluation.ndcg` and
        :func:`~bcls.evaluation.coherent_score`.

    Raises:
        ValueError: If there is no such encoder, an image has no caption, or ``k`` does not fit.
        MissingExtraError: If the packages of the encoder are not installed.
    """
    from bcls.evaluation import coherent_score, kendall, ndcg, one_per_image

    images, owner = len(split.images), split.image_of_caption
    _check_every_image(split)
    first = min(_USUAL_K, images) if k is None else check_whole("--cs", k, least=2)
    # One image alone has no order: without a K that somebody asked for there is no coherent score.
    coherent = k is not None or images > 1
    if coherent and first > images:
        fail("--cs", f"a number from 2 to {images}, the images of the split", first, "choose another K")
    with pseudo_labels(split, captions) as labels, progress("graded figures", 3) as step:
        figures = kendall(similarity, labels)
        step(1, "tau")
        figures |= ndcg(similarity, labels, negative="clip")
        step(2, "nDCG")
        if coherent:
            columns = one_per_image(owner, images)
            figures |= coherent_score(similarity[:, columns], labels[:, columns], first)
        step(3, "coherent score")
    return figures


@contextmanager
def pseudo_labels(split: "Dataset", captions: CaptionVectors) -> Iterator[NDArray[np.float32]]:
    """Make the label of every pair, block by block: in memory, or in a temporary file where it would be too large.

    Args:
        split: Images and captions; every image has one.
        captions: Of the same split.

    Yields:
        ``(N, C)`` float32 labels: the highest cosine of a caption with those of the image, 1 for its own.
    """
    from bcls.labels import relevance

    vectors, owner = captions.vectors, split.image_of_caption
    shape = len(split.images), len(split.captions)
    step = max(1, _AT_ONCE // (4 * shape[0]))
    with tempfile.TemporaryDirectory(prefix="bcls-labels-", ignore_cleanup_errors=True) as folder:
        labels: NDArray[np.float32]
        if 4 * shape[0] * shape[1] <= IN_MEMORY:
            labels = np.empty(shape, dtype=np.float32)
        else:
            labels = np.lib.format.open_memmap(Path(folder) / "labels.npy", mode="w+", dtype=np.float32, shape=shape)
        for start in range(0, shape[1], step):
            part = slice(start, start + step)
            labels[:, part] = relevance(vectors, vectors[part], owner, caption_image=owner[part])
        yield labels


def _check_every_image(split: "Dataset") -> None:
    without = np.flatnonzero(np.bincount(split.image_of_caption, minlength=len(split.images)) == 0)
    if without.size:
        shown = ", ".join(split.image_ids[place] for place in without[:3])
        got = f"{without.size} without ({shown}{', ...' if without.size > 3 else ''})"
        fail("--labels", "a caption for every image of the split", got, "leave these images out of the dataset")
