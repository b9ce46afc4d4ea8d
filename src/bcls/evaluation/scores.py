"""Scores of a model on a split: from the model itself, from a saved similarity matrix, or from embeddings.

:func:`score_model` is the only place that scores a model on the images and captions of a dataset.
:func:`load_similarity` accepts everything that a user can name on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls._core.files import user_path
from bcls._core.progress import progress
from bcls.evaluation.arrays import ENDINGS, Stored, open_matrix
from bcls.evaluation.inputs import blocks, id_differences, read_rows

if TYPE_CHECKING:
    from bcls.data.dataset import Dataset
    from bcls.data.features import Features
    from bcls.models.base import RetrievalModel
    from bcls.models.layers import Padded

#: Called with the number of items read so far.
Report: TypeAlias = Callable[[int], None] | None
#: Elements of a matrix processed at a time: 16 MB of float32.
BLOCK = 1 << 22
_THREADS = 4


def load_similarity(
    models: Sequence[str], split: Dataset, flag: str = "--similarity", *, features: str | None = None
) -> NDArray[Any]:
    """Read or compute the scores of a model, or the mean of the scores of several (an ensemble).

    A single matrix is used as it is, memory-mapped if possible. Several are added up block by block.

    Args:
        models: Each is a model (see :func:`model_scores`), a matrix (see :func:`bcls.evaluation.arrays.open_matrix`),
            or a folder with embeddings (see :func:`find_embeddings`), whose cosines are the scores.
        split: The split: its images are the rows, its captions are the columns.
        flag: Name of ``models`` in error messages.
        features: Name of the dataset's features that models read. By default those of their training runs, or images.

    Returns:
        ``(N, C)``; a mean is float32 if all matrices can be cast to it, else float64.

    Raises:
        ValueError: If one is not such a model, matrix or folder, or does not match the split; the message names it.
        OSError: If it cannot be read.
    """
    _check_captions(split)
    if isinstance(models, str):
        fail(flag, "a list of names", repr(models), f"write [{models!r}]")
    if not models:
        hint = "give a model, a matrix of images x captions, or a folder of embeddings"
        fail(flag, "at least one file", "none", hint)
    paths = [user_path(model).resolve() for model in models]  # a.npy and ./a.npy are the same file
    twice = [model for model, path in zip(models, paths, strict=True) if paths.count(path) > 1]
    if twice:
        fail(flag, "different files", f"{twice[0]} more than once", "give each model of an ensemble once")
    find_models(models, flag)
    if len(models) == 1:
        return _load_one(models[0], split, features)
    total: NDArray[Any] = np.zeros((len(split.images), len(split.captions)), dtype=np.float32)
    for model in models:
        matrix = _load_one(model, split, features)
        if not np.can_cast(matrix.dtype, total.dtype):
            total = total.astype(np.float64)
        for rows in row_blocks(*matrix.shape):
            total[rows] += matrix[rows]
    total /= len(models)
    return total


def _load_one(name: str, split: Dataset, features: str | None) -> NDArray[Any]:
    if is_model(name):
        return model_scores(name, split, features)
    folder = user_path(name)
    if folder.is_dir():
        return load_embeddings(*find_embeddings(folder), split)
    stored = open_matrix(name)
    _check_ids(stored, split)
    check_similarity_shape(name, stored.array.shape, split)
    _check_finite(stored)
    return stored.array


def is_model(name: str) -> bool:
    """Whether a name is that of a model: a model folder, a run folder, or not a file at all, such as ``photo``.

    A misspelled name counts as a model, so that loading it raises an error that lists the valid names.
    """
    from bcls.models.folder import is_model_folder

    path = user_path(name)
    if path.is_dir():
        return is_model_folder(path) or (path / "checkpoints").is_dir()
    return not path.exists() and not any(ending in path.name for ending in ENDINGS)


def find_models(models: Sequence[str], flag: str) -> None:
    """Check that all models exist, since computing the scores of the first takes long; errors name the flag."""
    from bcls.models.loading import find_folder

    for name in filter(is_model, models):
        try:
            find_folder(name)
        except ValueError as error:
            raise ValueError(str(error).replace("`model`", f"`{flag}`", 1)) from error


def model_scores(name: str, split: Dataset, features: str | None = None) -> NDArray[np.float32]:
    """Load a model and score all images of a split against all of its captions.

    Args:
        name: Argument of :func:`bcls.models.load`: a model folder, a run folder, ``"photo"``, or a hub name.
        split: The images (rows) and captions (columns).
        features: Name of the dataset's features that the model reads. By default those of the run's config, or images
            if there are none.

    Returns:
        ``(N, C)`` float32.

    Raises:
        ValueError: If there is no such model, it does not read what the dataset has, or its scores are not finite.
        OSError: If an image or a feature file cannot be read.
        MissingExtraError: If a package that the model needs is not installed.
    """
    import torch

    from bcls.models.loading import load, run_settings

    model = load(name)
    chosen = features if features is not None else run_settings(user_path(name)).get("features")
    _check_inputs(name, model, split, chosen)
    if torch.cuda.is_available():
        model.to("cuda")
    with progress(f"scoring with {Path(name).name}", len(split.images)) as step:
        scores = score_model(model, split, split.texts, chosen, step=step)
    _check_finite(Stored(name, scores))
    return scores


def score_model(
    model: RetrievalModel, images: Dataset, texts: Sequence[str], features: str | None = None, *, step: Report = None
) -> NDArray[np.float32]:
    """Score the images of a dataset against texts, on the device of the model.

    Args:
        model: The model. Frozen encoders are applied through its ``image_vectors_of`` and ``text_vectors_of``, which
            callers may replace by cached versions.
        images: The dataset whose images are scored.
        texts: Captions of this or another dataset.
        features: Name of the dataset's features that the model reads; ``None`` for images.
        step: Called with the number of images read so far.

    Returns:
        ``(N, C)`` float32: one row per image and one column per text.
    """
    captions: Any = list(texts)
    with ThreadPoolExecutor(_THREADS, "bcls-read") as pool:
        if features is not None:
            stored = images.features(features)
            every = np.arange(len(stored))
            inputs: Any = LazyImages(images, lambda part: read_features(stored, every[part]).float(), step)
        else:
            inputs = lazy_images(images, pool, step)
            if getattr(model, "frozen_images", False):
                inputs = model.image_vectors_of(inputs)  # type: ignore[operator]
        if getattr(model, "frozen_text", False):
            captions = model.text_vectors_of(captions)  # type: ignore[operator]
        scores: NDArray[np.float32] = model.similarity(inputs, captions).numpy()
    return scores


class LazyImages:
    """Images or features of a dataset, read slice by slice when a model accesses them, and not kept.

    Args:
        dataset: The dataset.
        read: Reads the images of a slice, as a list of PIL images or as padded features.
        step: Called with the number of images read so far.
    """

    def __init__(self, dataset: Dataset, read: Callable[[slice], Any], step: Report = None) -> None:
        self.dataset, self._read, self._step = dataset, read, step

    def __len__(self) -> int:
        return len(self.dataset.images)

    def __getitem__(self, part: slice) -> Any:
        read = self._read(part)
        if self._step is not None:
            self._step(len(range(len(self))[: part.stop]))
        return read


def lazy_images(dataset: Dataset, pool: Executor, step: Report = None) -> LazyImages:
    """The images of a dataset, read by the threads of a pool."""
    return LazyImages(dataset, lambda part: list(pool.map(dataset.read_image, dataset.image_ids[part])), step)


def read_features(features: Features, images: NDArray[np.int64], views: NDArray[np.int64] | int = 0) -> Padded:
    """Read features of some images, each in one view, and their numbers of regions, in the precision of the file."""
    import torch

    from bcls.models.layers import Padded

    lengths = None
    if len(features.shape) > 2 and any(counts is not None for counts in features.counts):
        counts = [features.regions(int(image), int(view)) for image, view in np.broadcast(images, views)]
        lengths = torch.tensor([features.shape[1] if count is None else count for count in counts])
    return Padded(torch.from_numpy(features.take(images, views)), lengths)


def _check_inputs(name: str, model: RetrievalModel, split: Dataset, features: str | None) -> None:
    """Check that a model accepts the images or features and the captions of a split, on the first item.

    Raises:
        ValueError: If not; the message has both shapes.
    """
    from PIL import Image

    if features is None:
        try:
            model.prepare_images([Image.new("RGB", (32, 32))])
        except ValueError:
            hint = f"{split.name} has none: extract them first"
            if split.feature_names:
                hint = f"give `features`, or --features, one of {', '.join(split.feature_names)}"
            fail(name, "the name of the features that it reads", "none", hint)
    else:
        first = read_features(split.features(features), np.arange(1))
        try:
            model.prepare_images(first.float())
        except ValueError as error:
            what, hint = f"the features {features!r} of {split.name}", "give others with `features` (--features)"
            raise ValueError(f"`{name}` does not read {what}: {error}; {hint}") from error
    try:
        model.prepare_texts([split.texts[0]])
    except ValueError as error:
        raise ValueError(f"`{name}` does not read captions: {error}; save it with its vocabulary") from error


def load_embeddings(images: str, texts: str, split: Dataset) -> NDArray[np.float32]:
    """Compute the cosines of two files of embeddings, block by block.

    Args:
        images: Name for :func:`bcls.evaluation.arrays.open_matrix`; one row per image, of any length but zero.
        texts: The same with one row per caption.
        split: The split of these images and captions.

    Returns:
        ``(N, C)`` float32.

    Raises:
        ValueError: If a file does not match the split or the other file, or a row is zero or not finite.
        OSError: If one cannot be read.
    """
    _check_captions(split)
    rows, columns = open_matrix(images), open_matrix(texts)
    counts, got = (len(split.images), len(split.captions)), (len(rows.array), len(columns.array))
    for stored in (rows, columns):
        _check_ids(stored, split)
    if got != counts:
        which = 0 if got[0] != counts[0] else 1
        hint = "give one row for each, in the order of the split"
        if got == counts[::-1]:
            hint = "the two files are exchanged"
        elif which == 0 and got[0] == counts[1]:
            hint = "it repeats each image for its captions: keep one row per image"
        expected = f"{counts[which]} rows, the split's {('images', 'captions')[which]}"
        fail((images, texts)[which], expected, got[which], hint)
    if rows.array.shape[1] != columns.array.shape[1]:
        expected = f"vectors of length {rows.array.shape[1]}, as those of the images"
        fail(columns.name, expected, columns.array.shape[1], "use the two encoders of one model")
    _check_finite(rows)
    _check_finite(columns)
    candidates = _unit(columns, slice(0, counts[1])).T
    cosines = np.empty(counts, dtype=np.float32)
    for part in row_blocks(*counts):
        np.matmul(_unit(rows, part), candidates, out=cosines[part])
    return cosines


def find_embeddings(folder: Path) -> tuple[str, str]:
    """Find the embeddings of images and texts in a folder: one file each, called ``images`` and ``texts``.

    Args:
        folder: With ``images.npy`` and ``texts.npy``, or with another ending of
            :func:`bcls.evaluation.arrays.open_matrix`.

    Returns:
        The two paths.

    Raises:
        ValueError: If there is no such file or more than one.
    """
    found: list[str] = []
    for stem in ("images", "texts"):
        files = [folder / f"{stem}{ending}" for ending in ENDINGS if (folder / f"{stem}{ending}").is_file()]
        if not files and not found:
            expected = "a run with a checkpoint, a saved model, or embeddings in images.npy and texts.npy"
            fail(str(folder), expected, "none of these", "check the path, and whether the run was trained")
        if len(files) != 1:
            got = ", ".join(file.name for file in files) if files else f"no file {stem}.npy"
            hint = "leave one of them" if files else "check the path: it is not the folder of a model or run either"
            fail(str(folder), f"one file of embeddings called {stem}", got, hint)
        found.append(str(files[0]))
    return found[0], found[1]


def _unit(stored: Stored, rows: slice) -> NDArray[np.float32]:
    block = np.array(stored.array[rows], dtype=np.float64)  # a copy: memory-mapped files are read-only
    # Divided by the largest value first, so that squares of very large or small numbers stay in range.
    largest = np.abs(block).max(axis=1, keepdims=True)
    zero = np.flatnonzero(largest == 0)
    if zero.size:
        fail(stored.name, "non-zero vectors", f"a zero vector in row {rows.start + zero[0]}", "encode it again")
    block /= largest
    block /= np.linalg.norm(block, axis=1, keepdims=True)
    return block.astype(np.float32)


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Split rows into blocks of about :data:`BLOCK` elements.

    Example:
        >>> list(row_blocks(3, BLOCK // 2))
        [slice(0, 2, None), slice(2, 3, None)]
    """
    return blocks(rows, BLOCK // columns)


def check_similarity_shape(name: str, shape: tuple[int, ...], split: Dataset) -> None:
    """Check that a matrix has a row for each image and a column for each caption of a split.

    Args:
        name: Name of the matrix in error messages.
        shape: Shape of the matrix.
        split: Images and captions.

    Raises:
        ValueError: If not; the message recognizes transposed matrices and repeated images.
    """
    images, captions = len(split.images), len(split.captions)
    if shape == (images, captions):
        return
    hint = "rows are images and columns captions of the chosen --split"
    if shape == (captions, images):
        hint = "it is transposed: save similarity.T"
    elif shape == (captions, captions):
        hint = "it repeats each image for its captions: keep one row per image"
    elif len(shape) == 2 and shape[0] == images and shape[1] < captions:
        hint += "; a ranking cut to its first items is not enough"
    fail(name, f"shape ({images}, {captions}), the images and captions of the split", shape, hint)


def _check_captions(split: Dataset) -> None:
    if not split.captions:
        fail(str(split.folder), "a split with captions", f"{len(split.images)} images and no caption", "choose another")


def _check_finite(stored: Stored) -> None:
    for rows in row_blocks(*stored.array.shape):
        read_rows(stored.name, stored.array, rows)


def _check_ids(stored: Stored, split: Dataset) -> None:
    """Check the ids in the file of a matrix against the images and captions of the split.

    Raises:
        ValueError: If some are unknown, missing or repeated (the message counts and lists them), or in another order.
    """
    captions = [caption.caption_id for caption in split.captions]
    for key, kind, expected in (("image_ids", "images", list(split.image_ids)), ("caption_ids", "captions", captions)):
        got = stored.ids.get(key)
        if got is None or got == expected:
            continue
        wrong = id_differences(got, expected)
        hint = "use the scores of this split, or another --split"
        if not wrong:
            places = [place for place, (one, other) in enumerate(zip(got, expected, strict=True)) if one != other]
            first = places[0]
            wrong = [f"another order ({len(places)} places differ, first {got[first]!r} for {expected[first]!r})"]
            hint = "sort rows and columns as in the dataset"
        fail(stored.name, f"{key} of the split's {len(expected)} {kind}", ", ".join(wrong), hint)
