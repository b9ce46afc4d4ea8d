"""Whether an array belongs to a split: its ids, its shape and its values.

The scores of a model, of a saved folder or a training run, on the images and captions of a split.

The scores of a model on a split, from what a user names: the model, a similarity matrix, or embeddings.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcls._core.config import read_yaml
from bcls._core.errors import fail
from bcls._core.files import user_path
from bcls._core.progress import progress
from bcls.evaluation.arrays import ENDINGS, Stored, open_matrix

if TYPE_CHECKING:
    from torch import Tensor

    from bcls.data.dataset import Dataset
    from bcls.data.features import Features
    from bcls.models.base import RetrievalModel

# Elements looked at at once: 16 MB of float32.
BLOCK = 1 << 22


def check_captions(split: "Dataset") -> None:
    """Check that a split has captions at all, without which there is nothing to ask."""
    if not split.captions:
        fail(str(split.folder), "a split with captions", f"{len(split.images)} images and no caption", "choose another")


def check_ids(stored: Stored, split: "Dataset") -> None:
    """Check the ids that came with an array against the images and captions of the split.

    Raises:
        ValueError: If some are unknown, missing or repeated, which are counted and shown, or in another order.
    """
    _compare_ids(stored, "image_ids", split.image_ids)
    _compare_ids(stored, "caption_ids", [caption.caption_id for caption in split.captions])


def _compare_ids(stored: Stored, key: str, expected: Sequence[str]) -> None:
    came = stored.ids.get(key)
    if came is None or came == list(expected):
        return
    known, given = set(expected), set(came)
    unknown, missing = [one for one in came if one not in known], [one for one in expected if one not in given]
    parts = [f"{len(ids)} {word} ({_some(ids)})" for word, ids in (("unknown", unknown), ("missing", missing)) if ids]
    if len(given) < len(came):
        parts.append(f"{len(came) - len(given)} repeated")
    remedy = "take the scores of this split, or another --split"
    if not parts:
        places = [place for place, (one, other) in enumerate(zip(came, expected, strict=True)) if one != other]
        first = places[0]
        parts = [f"another order ({len(places)} places differ, first {came[first]!r} for {expected[first]!r})"]
        remedy = "sort rows and columns as the dataset has them"
    fail(stored.name, f"{key} of the split's {len(expected)} {_plural(key)}", ", ".join(parts), remedy)


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")


def _plural(key: str) -> str:
    return "images" if key == "image_ids" else "captions"


def check_similarity_shape(name: str, shape: tuple[int, ...], split: "Dataset") -> None:
    """Check that a matrix has a row for each image and a column for each caption of a split.

    Args:
        name: What the message calls the matrix.
        shape: Of the matrix.
        split: Images and captions.

    Raises:
        ValueError: If not; a transposed matrix and repeated images are named as such.
    """
    images, captions = len(split.images), len(split.captions)
    if shape == (images, captions):
        return
    remedy = "rows are images and columns captions of the chosen --split"
    if shape == (captions, images):
        remedy = "it is transposed: save similarity.T"
    elif shape == (captions, captions):
        remedy = "it repeats each image for its captions: keep one row an image"
    elif len(shape) == 2 and shape[0] == images and shape[1] < captions:
        remedy += "; a ranking cut to its first items will not do"
    expected = f"shape ({images}, {captions}), the images and captions of the split"
    fail(name, expected, shape, remedy)


def check_finite(stored: Stored) -> None:
    """Check that every value is finite.

    Raises:
        ValueError: If one is not; its row is named.
    """
    for rows in row_blocks(*stored.array.shape):
        block = np.asarray(stored.array[rows])
        # The extremes carry any NaN or infinity along and need no mask of the block's size.
        if np.isfinite(block.min()) and np.isfinite(block.max()):
            continue
        row = int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
        value = block[row][~np.isfinite(block[row])][0]
        remedy = "look for a division by zero"
        if value == -np.inf:
            remedy = "a ranking cut to its first items will not do: give the scores of all pairs"
        fail(stored.name, "finite numbers", f"{value} in row {rows.start + row}", remedy)


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Cut rows into blocks of about :data:`BLOCK` elements.

    Example:
        >>> list(row_blocks(3, BLOCK // 2))
        [slice(0, 2, None), slice(2, 3, None)]
    """
    return parts(rows, max(1, BLOCK // columns))


def parts(count: int, size: int) -> Iterator[slice]:
    """Cut ``range(count)`` into consecutive slices of at most ``size``.

    Example:
        >>> list(parts(3, 2))
        [slice(0, 2, None), slice(2, 3, None)]
    """
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


#: Images and captions that are encoded at a time.
_BATCH = 256
#: Images and captions that a model scores at a time which compares words and regions; each block encodes them anew.
_IMAGES, _CAPTIONS = 500, 2500
_THREADS = 4
#: Of a run's folder: the settings, and what holds its models.
_RUN_CONFIG, _CHECKPOINTS = "config.yaml", "checkpoints"


def is_model(name: str) -> bool:
    """Whether a name is that of a model: its folder, a run's folder, or no file at all, such as ``photo``.

    A misspelt name counts as one, so that loading it says what there is to name.
    """
    from bcls.models.folder import is_model_folder

    path = user_path(name)
    if path.is_dir():
        return is_model_folder(path) or (path / _CHECKPOINTS).is_dir()
    return not path.exists() and not any(ending in path.name for ending in ENDINGS)


def model_scores(name: str, split: "Dataset", features: str | None = None, flag: str = "--similarity") -> NDArray[Any]:
    """Score all images of a split against all its captions.

    Args:
        name: For :func:`bcls.models.load`: the folder of a model or of a training run, ``"photo"``, or a hub name.
        split: The images, which are rows, and the captions, which are columns.
        features: Name of the dataset's features that the model reads; those of the run's settings where left out, and
            pictures where there are none either.
        flag: What the caller calls ``name``.

    Returns:
        ``(N, C)`` float32.

    Raises:
        ValueError: There is no such model, it does not read what the dataset has, or its scores are not finite.
        OSError: A picture or a file of features cannot be read.
        MissingExtraError: A package that the model needs is not installed.
    """
    import torch

    from bcls.models import load
    from bcls.models.base import RetrievalModel

    try:
        model = load(name)
    except ValueError as error:
        # It speaks of its own argument; who reads this wrote a flag.
        raise ValueError(str(error).replace("`path_or_name`", f"`{flag}`", 1)) from error
    chosen = features if features is not None else _features_of_run(user_path(name))
    with ThreadPoolExecutor(_THREADS, "bcls-read") as pool:
        images = _images(name, model, split, chosen, pool)
        _check_texts(name, model, split.texts[0])
        if torch.cuda.is_available():
            model.to("cuda")
        if type(model).similarity is RetrievalModel.similarity:
            scores = _by_vectors(name, model, images, split)
        else:
            scores = _by_pairs(name, model, images, split)
    check_finite(Stored(name, scores))
    return scores


def _features_of_run(folder: Path) -> str | None:
    """The name of the features that a run was trained on; ``None`` for pictures, and for what is no run.

    Args:
        folder: The run's, or that of one of its checkpoints.

    Raises:
        ValueError: Its settings cannot be read.
    """
    run = folder.parent.parent if folder.parent.name == _CHECKPOINTS else folder
    path = run / _RUN_CONFIG
    if not path.is_file():
        return None
    settings = read_yaml(path)
    found = settings.get("features") if isinstance(settings, dict) else None
    return None if found is None else str(found)


def _images(
    name: str, model: "RetrievalModel", split: "Dataset", features: str | None, pool: ThreadPoolExecutor
) -> Callable[[slice], Any]:
    """What gives a part of the images as the model takes them, tried on the first one.

    Raises:
        ValueError: The model reads something else; the message has both shapes.
    """
    if features is not None:
        read = _read_features(split.features(features))
        what, remedy = f"the features {features!r} of {split.name}", "name others with --features"
    else:
        read = _read_pictures(split, pool)
        what, remedy = f"the pictures of {split.name}", _name_features(split)
        if not _sees_pictures(model):
            fail(name, "the name of the features that it reads", "none", remedy)
    try:
        model.prepare_images(read(slice(0, 1)))
    except ValueError as error:
        raise ValueError(f"`{name}` does not read {what}: {error}; {remedy}") from error
    return read


def _sees_pictures(model: "RetrievalModel") -> bool:
    from PIL import Image

    try:
        model.prepare_images([Image.new("RGB", (32, 32))])
    except ValueError:
        return False
    return True


def _name_features(split: "Dataset") -> str:
    known = ", ".join(split.feature_names)
    return f"give it with --features, one of {known}" if known else f"{split.name} has none: make them first"


def _read_features(features: "Features") -> Callable[[slice], Any]:
    import torch

    from bcls.models.padded import Padded

    def read(part: slice) -> Padded:
        rows = range(len(features))[part]
        counts = [features.regions(row) for row in rows]
        known = [count for count in counts if count is not None]
        lengths = torch.tensor(known, dtype=torch.int64) if len(known) == len(rows) else None
        return Padded(torch.from_numpy(features.take(rows)).float(), lengths)

    return read


def _read_pictures(split: "Dataset", pool: ThreadPoolExecutor) -> Callable[[slice], Any]:
    return lambda part: list(pool.map(split.read_image, split.image_ids[part]))


def _check_texts(name: str, model: "RetrievalModel", text: str) -> None:
    try:
        model.prepare_texts([text])
    except ValueError as error:
        raise ValueError(f"`{name}` does not read captions: {error}; save it with its vocabulary") from error


def _by_vectors(
    name: str, model: "RetrievalModel", images: Callable[[slice], Any], split: "Dataset"
) -> NDArray[np.float32]:
    counts = len(split.images), len(split.captions)
    # Captions of like length go together, so that little is padding.
    order = sorted(range(counts[1]), key=lambda place: len(split.texts[place]))
    with progress(f"encoding by {Path(name).name}", sum(counts)) as step:
        rows = _encoded(lambda part: model.encode_images(images(part)), counts[0], 0, step)
        columns = _encoded(
            lambda part: model.encode_texts([split.texts[place] for place in order[part]]), counts[1], counts[0], step
        )
    scores = np.empty(counts, dtype=np.float32)
    scores[:, order] = rows @ columns.T
    return scores


def _encoded(
    encode: Callable[[slice], "Tensor"], count: int, before: int, step: Callable[[int], None]
) -> NDArray[np.float32]:
    vectors = []
    for part in parts(count, _BATCH):
        vectors.append(encode(part).numpy())
        step(before + part.stop)
    return np.concatenate(vectors)


def _by_pairs(
    name: str, model: "RetrievalModel", images: Callable[[slice], Any], split: "Dataset"
) -> NDArray[np.float32]:
    scores = np.empty((len(split.images), len(split.captions)), dtype=np.float32)
    done = 0
    with progress(f"scoring by {Path(name).name}", scores.size) as step:
        for rows in parts(scores.shape[0], _IMAGES):
            block = images(rows)
            for columns in parts(scores.shape[1], _CAPTIONS):
                scores[rows, columns] = model.similarity(block, split.texts[columns]).numpy()
                done += scores[rows, columns].size
                step(done)
    return scores


def load_similarity(
    models: Sequence[str], split: "Dataset", flag: str = "--similarity", *, features: str | None = None
) -> NDArray[Any]:
    """Read or compute the scores of a model, or the mean of those of several: the ensemble.

    One matrix is used as it is, mapped into memory where it can be. Of several, one after another is added up in
    blocks.

    Args:
        models: Each a model, see :func:`bcls.evaluation.scores.model_scores`; a matrix, for
            :func:`bcls.evaluation.arrays.open_matrix`; or a folder with embeddings, see :func:`find_embeddings`, whose
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
            :func:`bcls.evaluation.arrays.open_matrix` reads.

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
        images: Name for :func:`bcls.evaluation.arrays.open_matrix`, one row an image; of any length, not zero.
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
