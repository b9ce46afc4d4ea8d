"""The scores of a model on a split, from what a user names: the model, a similarity matrix, or embeddings."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls._files import user_path
from bcls.assess.arrays import ENDINGS, Stored, open_matrix
from bcls.assess.fits import (
    check_captions,
    check_finite,
    check_ids,
    check_similarity_shape,
    row_blocks,
)
from bcls.assess.model_scores import is_model, model_scores

if TYPE_CHECKING:
    from bcls.data import Dataset


def load_similarity(
    models: Sequence[str], split: "Dataset", flag: str = "--similarity", *, features: str | None = None
) -> NDArray[Any]:
    """Read or compute the scores of a model, or the mean of those of several: the ensemble.

    One matrix is used as it is, mapped into memory where it can be. Of several, one after another is added up in
    blocks.

    Args:
        models: Each a model, see :func:`bcls.assess.model_scores.model_scores`; a matrix, for
            :func:`bcls.assess.arrays.open_matrix`; or a folder with embeddings, see :func:`find_embeddings`, whose
            cosines are the scores.
        split: Whose images are the rows and whose captions the columns.
        flag: What the caller calls ``models``.
        features: Name of the dataset's features that models read; left out, those of their runs, and else pictures.

    Returns:
        ``(N, C)``; the mean is float32 where all matrices fit into it, else float64.

    Raises:
        ValueError: If one is no such model, matrix or folder, or does not fit the split; the message names it.
        OSError: If it cannot be read.
    """
    check_captions(split)
    if isinstance(models, str):
        fail(flag, "a list of names", repr(models), f"write [{models!r}]")
    if not models:
        fail(
            flag, "at least one file", "none", "give a model, a matrix of images x captions, or a folder of embeddings"
        )
    if len(set(models)) < len(models):
        twice = next(model for model in models if models.count(model) > 1)
        fail(flag, "different files", f"{twice} more than once", "name each model of an ensemble once")
    if len(models) == 1:
        return _read_model(models[0], split, features, flag)
    total: NDArray[Any] = np.zeros((len(split.images), len(split.captions)), dtype=np.float32)
    for model in models:
        total = _add(total, _read_model(model, split, features, flag))
    total /= len(models)
    return total


def _read_model(name: str, split: "Dataset", features: str | None, flag: str) -> NDArray[Any]:
    """Turn what a user named into scores; each kind of thing that can be named has its branch here."""
    if is_model(name):
        return model_scores(name, split, features, flag)
    folder = user_path(name)
    if folder.is_dir():
        return load_embeddings(*find_embeddings(folder), split)
    stored = open_matrix(name)
    check_ids(stored, split)
    check_similarity_shape(name, stored.array.shape, split)
    check_finite(stored)
    return stored.array


def find_embeddings(folder: Path) -> tuple[str, str]:
    """Find the embeddings of images and of texts in a folder: one file each, called ``images`` and ``texts``.

    Args:
        folder: With ``images.npy`` and ``texts.npy``, or with another ending that
            :func:`bcls.assess.arrays.open_matrix` reads.

    Returns:
        Their names.

    Raises:
        ValueError: If there is no such file or more than one.
    """
    found = []
    for stem in ("images", "texts"):
        files = [folder / f"{stem}{ending}" for ending in ENDINGS if (folder / f"{stem}{ending}").is_file()]
        if len(files) != 1:
            got = ", ".join(file.name for file in files) if files else f"no file {stem}.npy"
            remedy = "leave one of them" if files else "save the embeddings of images and captions there"
            fail(str(folder), f"one file of embeddings called {stem}", got, remedy)
        found.append(str(files[0]))
    return found[0], found[1]


def _add(total: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    if not np.can_cast(matrix.dtype, total.dtype):
        total = total.astype(np.float64)
    for rows in row_blocks(*matrix.shape):
        total[rows] += matrix[rows]
    return total


def on_disk(similarity: NDArray[Any], path: Path) -> Callable[[], NDArray[Any]]:
    """Put scores into a file, and return what maps them into memory again."""
    np.save(path, similarity)
    return partial(np.load, path, mmap_mode="r")


def load_embeddings(images: str, texts: str, split: "Dataset") -> NDArray[np.float32]:
    """Compute the cosines of two files of embeddings, block by block.

    Args:
        images: Name for :func:`bcls.assess.arrays.open_matrix`, one row an image; of any length, not zero.
        texts: The same, one row a caption.
        split: Whose images and captions these are.

    Returns:
        ``(N, C)`` float32.

    Raises:
        ValueError: If a file does not fit the split or the other file, or a row is zero or not finite.
        OSError: If one cannot be read.
    """
    check_captions(split)
    rows, columns = open_matrix(images), open_matrix(texts)
    counts, came = (len(split.images), len(split.captions)), (len(rows.array), len(columns.array))
    for stored in (rows, columns):
        check_ids(stored, split)
    if came != counts:
        _refuse_counts(rows.name, columns.name, counts, came)
    if rows.array.shape[1] != columns.array.shape[1]:
        expected = f"vectors of length {rows.array.shape[1]}, as those of the images"
        fail(columns.name, expected, columns.array.shape[1], "use the two encoders of one model")
    check_finite(rows)
    check_finite(columns)
    candidates = _unit(columns, slice(0, counts[1])).T
    cosines = np.empty(counts, dtype=np.float32)
    for part in row_blocks(*counts):
        np.matmul(_unit(rows, part), candidates, out=cosines[part])
    return cosines


def _refuse_counts(images: str, texts: str, counts: tuple[int, int], came: tuple[int, int]) -> None:
    which = 0 if came[0] != counts[0] else 1
    remedy = "give one row for each, in the order of the split"
    if came == counts[::-1]:
        remedy = "the two files are exchanged"
    elif which == 0 and came[0] == counts[1]:
        remedy = "it repeats each image for its captions: keep one row an image"
    expected = f"{counts[which]} rows, the split's {('images', 'captions')[which]}"
    fail((images, texts)[which], expected, came[which], remedy)


def _unit(stored: Stored, rows: slice) -> NDArray[np.float32]:
    block = np.array(stored.array[rows], dtype=np.float64)  # a copy: mapped files are not written to
    # Divided by the largest first, so that the squares of very large or small numbers stay in range.
    largest = np.abs(block).max(axis=1, keepdims=True)
    zero = np.flatnonzero(largest == 0)
    if zero.size:
        fail(stored.name, "vectors with a direction", f"a zero vector in row {rows.start + zero[0]}", "encode it again")
    block /= largest
    block /= np.linalg.norm(block, axis=1, keepdims=True)
    return block.astype(np.float32)
