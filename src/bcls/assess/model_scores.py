"""The scores of a model, of a saved folder or a training run, on the images and captions of a split."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls._files import user_path
from bcls._progress import progress
from bcls._yaml import read_yaml
from bcls.assess.arrays import ENDINGS, Stored
from bcls.assess.fits import check_finite, parts

if TYPE_CHECKING:
    from torch import Tensor

    from bcls.data import Dataset, Features
    from bcls.models.base import RetrievalModel

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

    from bcls._padded import Padded

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
