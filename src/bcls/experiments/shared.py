"""What several runs of one process share: the opened dataset, and what frozen encoders made of it."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from bcls._files import write_whole
from bcls._padded import Padded
from bcls.assess import CaptionVectors
from bcls.data import Dataset, open_dataset
from bcls.experiments.results import held
from bcls.labels import cached_embeddings
from bcls.training.setup import build_model

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel
    from bcls.training import TrainConfig

#: Settings that the features of a model's frozen side depend on.
_SIDES = {
    ("dual", "image"): ("name", "image", "model", "image_view", "image_pooling", "features", "tune_image"),
    ("dual", "text"): ("name", "text", "model", "text_pooling", "tune_text"),
    ("vsepp", "image"): ("name", "backbone", "finetune"),
}


class Shared:
    """Data that is read once, for all runs of a process.

    A frozen encoder takes minutes over a dataset that a run then trains on in seconds: what it made is kept, also for
    other processes and for the next time.

    Args:
        data: Folder of the dataset.
        keep: Folder for what frozen encoders made.
    """

    def __init__(self, data: str | Path, keep: Path) -> None:
        self._folder, self._keep = Path(data), keep
        self._features: dict[str, Padded] = {}
        self._captions: dict[tuple[str, str], CaptionVectors] = {}
        self._splits: dict[tuple[str, bool], Dataset] = {}

    @cached_property
    def dataset(self) -> Dataset:
        """The whole dataset."""
        return open_dataset(self._folder)

    def split(self, name: str, config: "TrainConfig") -> Dataset:
        """One split, without what is in quarantine where the settings say so."""
        key = name, config.skip_quarantined
        if key not in self._splits:
            whole = self.dataset.without_quarantined() if config.skip_quarantined else self.dataset
            self._splits[key] = whole.split(name)
        return self._splits[key]

    def model(self, config: "TrainConfig") -> "RetrievalModel":
        """A new model as ``bcls train`` would draw it from the settings' seed."""
        torch.manual_seed(config.seed)
        return self.lend(build_model(config, self.split(config.train_split, config)))

    def lend(self, model: "RetrievalModel") -> "RetrievalModel":
        """Let a model use what frozen encoders made before, and keep what its own make.

        Args:
            model: Of any kind; one without frozen encoders stays as it is.

        Returns:
            The same model.
        """
        for side in ("text", "image"):
            name = f"{side}_vectors_of"
            if hasattr(model, name):
                # In place of the method of this one model; a saved model knows nothing of it.
                model.__dict__[name] = self._keeping(side, model, getattr(model, name))
        return model

    def captions(self, split: Dataset, encoder: str) -> CaptionVectors:
        """Label vectors of a split's captions, from the dataset's folder."""
        key = encoder, _hash(caption.caption_id for caption in split.captions)
        if key not in self._captions:
            self._captions[key] = _Kept(split, encoder, np.asarray(cached_embeddings(split, encoder)))
        return self._captions[key]

    def _keeping(self, side: str, model: "RetrievalModel", compute: Callable[[Any], Padded]) -> Callable[[Any], Padded]:
        encoder = encoder_of(asdict(model.config), side)

        def kept(items: Any) -> Padded:
            names = items if side == "text" else _names(items)
            if names is None:
                return compute(items)
            key = _hash([side, repr(sorted(encoder.items())), *names])
            if key not in self._features:
                self._features[key] = kept_file(self._keep / f"{side}-{key[:16]}.safetensors", lambda: compute(items))
            return self._features[key]

        return kept


def encoder_of(config: dict[str, Any], side: str) -> dict[str, Any]:
    """The settings of a model that the features of one of its sides depend on; all of a model that is not known.

    Example:
        >>> encoder_of({"name": "vsepp", "backbone": "resnet18", "finetune": False, "width": 8}, "image")
        {'name': 'vsepp', 'backbone': 'resnet18', 'finetune': False}
    """
    return {key: config[key] for key in _SIDES.get((config["name"], side), config)}


def kept_file(path: Path, compute: Callable[[], Padded]) -> Padded:
    """Read rows from a file, or compute them and write it; of several processes one does it and the others wait."""
    from safetensors.torch import load_file, save

    path.parent.mkdir(parents=True, exist_ok=True)
    with held(path.with_suffix(".lock")):
        if not path.is_file():
            made = compute()
            lengths = {} if made.lengths is None else {"lengths": made.lengths.contiguous()}
            write_whole(path, save({"values": made.values.contiguous(), **lengths}))
    found = load_file(path)
    return Padded(found["values"], found.get("lengths"))


class _Kept(CaptionVectors):
    """Vectors that are there already."""

    def __init__(self, split: Dataset, encoder: str, rows: NDArray[Any]) -> None:
        super().__init__(split, encoder)
        vectors = rows.astype(np.float32)  # kept as float16, whose lengths are a little off 1
        self.vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _names(pictures: Any) -> list[str] | None:
    """Ids of the pictures of a dataset; nothing of pictures that have none."""
    dataset = getattr(pictures, "_dataset", None)
    return None if dataset is None else [str(dataset.folder), *dataset.image_ids]


def _hash(words: Any) -> str:
    digest = hashlib.sha256()
    for word in words:
        digest.update(f"{len(word)}:{word}".encode())
    return digest.hexdigest()
