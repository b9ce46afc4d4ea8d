"""From settings to everything that a run needs: data, model, loss, optimiser, labels, validation."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

from bcls._core.errors import check_choice, fail
from bcls.data.dataset import Dataset, open_dataset
from bcls.data.vocabulary import Vocabulary
from bcls.labels.cache import cached_embeddings
from bcls.labels.encoders import fingerprint
from bcls.losses import RetrievalLoss
from bcls.models import build
from bcls.models.base import RetrievalModel
from bcls.models.config import model_config
from bcls.models.padded import Padded
from bcls.training.batch_labels import BatchLabels
from bcls.training.checkpoint import Learner, MovingAverage, decay_for
from bcls.training.config import TrainConfig, check_config
from bcls.training.console import tell
from bcls.training.cuda_graph import why_not
from bcls.training.images import HeldImages, ImageSource, PictureImages, Pictures, feature_images
from bcls.training.loader import Feed, Lookup, Texts
from bcls.training.optimization import LOSS_GROUP, make_loss, make_optimizer, numbers
from bcls.training.sampler import left_out, plan_epoch
from bcls.training.validate import Validation

#: Images of a rehearsal.
_FEW = 16


@dataclass(frozen=True)
class Run:
    """What a run works with; see :func:`set_up`."""

    config: TrainConfig
    accelerator: Accelerator
    train: Dataset
    feed: Feed
    labels: BatchLabels | None
    validation: Validation | None
    learner: Learner
    parallel: torch.nn.Module
    stepper: Any
    pool: ThreadPoolExecutor

    @cached_property
    def lookup(self) -> Lookup | None:
        """Makes batches on the device, for recorded steps whose data is all there."""
        if not self.config.graph or not Lookup.serves(self.feed, self.labels):
            return None
        return Lookup(self.feed, self.labels)

    @property
    def model(self) -> RetrievalModel:
        """The model itself, whatever wraps it for several processes."""
        return self.learner.model

    def plan(self, epoch: int) -> list[list[np.ndarray[Any, np.dtype[np.int64]]]]:
        """Batches of each step of the optimiser in an epoch."""
        config = self.config
        owner = self.train.image_of_caption
        least = max(2, self.accelerator.num_processes)
        batches = plan_epoch(owner, config.batch, config.seed, epoch, distinct=config.distinct, least=least)
        return [batches[start : start + config.accumulate] for start in range(0, len(batches), config.accumulate)]

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What tells the training data from other data."""
        digest = hashlib.sha256()
        for caption in self.train.captions:
            digest.update(f"{caption.caption_id}\t{caption.image_id}\t{caption.text}\n".encode())
        return {
            "name": self.train.name,
            "images": len(self.train.images),
            "captions": len(self.train.captions),
            "sha256": digest.hexdigest(),
        }


def set_up(
    config: TrainConfig, model: RetrievalModel | None = None, dataset: Dataset | None = None, *, rehearsal: bool = False
) -> Run:
    """Open the data, build model, loss and optimiser, and put them where they run.

    Args:
        config: The settings.
        model: A model in place of that of the settings.
        dataset: A dataset that is open already.
        rehearsal: Only the first pictures and captions can be asked for, and there are neither labels nor validation:
            frozen encoders would take minutes over all of them.

    Raises:
        ValueError: A setting is wrong, or settings, data and model do not fit together.
    """
    check_config(config)
    config = replace(config, model=numbers(config.model), loss=numbers(config.loss))
    loss = make_loss(config.loss)  # a misspelt argument is worth telling before the data is read
    accelerator = start_accelerator(config)
    reason = why_not(config, accelerator.device, accelerator.num_processes) if config.graph else None
    if reason is not None:
        fail("graph", "a run whose steps can be recorded", reason, "leave --graph out")
    whole = dataset if dataset is not None else _open(config)
    if config.skip_quarantined:
        whole = whole.without_quarantined()
    train = _split(whole, "train_split", config.train_split)
    torch.manual_seed(config.seed)
    if model is None:
        model = build_model(config, train)
    if config.loss.get("learn_temperature"):
        own = (getattr(model, name, None) for name in ("initial_temperature", "initial_bias"))
        loss = make_loss(config.loss, *own)
    _check_labels(config, loss)
    device = accelerator.device
    model.to(device)
    loss.to(device)
    pool = ThreadPoolExecutor(config.workers, "bcls-read")
    shown = train.of_images(train.image_ids[:_FEW]) if rehearsal else train
    feed = Feed(
        _images(config, shown, model, device, pool, training=True),
        Texts(_texts(shown, model), device),
        shown.image_of_caption,
        device,
        accelerator.process_index,
        accelerator.num_processes,
    )
    labels = None
    if config.labels != "none" and rehearsal:
        fingerprint(config.labels)  # says so where the encoder is not there
    elif config.labels != "none":
        with accelerator.main_process_first():  # makes them where they are not there yet
            vectors = cached_embeddings(train, config.labels)
        labels = BatchLabels(vectors, train.image_of_caption, config.aggregate, device)
    groups = model.parameter_groups()
    learnt = list(loss.parameters())
    if learnt:
        groups = {**groups, LOSS_GROUP: learnt}
    optimizer = make_optimizer(groups, config, device)
    steps = config.epochs * ceil(len(train.captions) / (config.batch * config.accumulate))
    average = MovingAverage(model, decay_for(config.ema, steps)) if config.ema else None
    parallel = accelerator.prepare_model(model)
    stepper = accelerator.prepare_optimizer(optimizer)
    learner = Learner(model, loss, optimizer, average, accelerator.scaler)
    validation = None
    if config.val_split is not None:
        split = _split(whole, "val_split", config.val_split)
        validation = None if rehearsal else _validation(config, split, model, device, pool)
    return Run(config, accelerator, train, feed, labels, validation, learner, parallel, stepper, pool)


def start_accelerator(config: TrainConfig) -> Accelerator:
    """Accelerate, on the device and in the precision that the settings ask for."""
    if config.device == "cuda" and not torch.cuda.is_available():
        fail("device", "a machine with a CUDA device", "none", "use --device cpu or auto")
    # A run before this one in the same process may have had another precision or device; one beside it has the same.
    now = AcceleratorState._shared_state
    if now and now["_cpu"] != (config.device == "cpu"):
        AcceleratorState._reset_state(reset_partial_state=True)
    elif now and now["_mixed_precision"] != config.precision:
        AcceleratorState._reset_state()
    return Accelerator(mixed_precision=config.precision, cpu=config.device == "cpu")


def build_model(config: TrainConfig, train: Dataset) -> RetrievalModel:
    """The model of the settings; the width of features and the vocabulary come from the data unless they are given.

    Raises:
        ValueError: The model's settings are wrong, or say another width than the features have.
    """
    settings = dict(config.model)
    wanted = settings.get("name") in {"vsepp", "sgr", "saf", "sgraf"} or settings.get("image") == "features"
    if config.features is not None and wanted and not settings.get("backbone"):
        width = train.features(config.features).shape[-1]
        given = settings.setdefault("features", width)
        if given != width:
            expected = f"{width}, the width of the features {config.features!r}"
            fail("model.features", expected, given, "leave it out: it is read from the data")
    parsed = model_config(settings)
    if not hasattr(parsed, "words") or getattr(parsed, "text", "gru") != "gru":  # reads captions by itself
        return build(parsed)
    if config.vocabulary is not None:
        words = Vocabulary.read(config.vocabulary)
    else:
        words = Vocabulary.build(train.texts, threshold=config.word_threshold)
    return build(parsed, vocabulary=words)


def unvisited(run: Run) -> int:
    """How many captions the first epoch leaves out."""
    return left_out([batch for step in run.plan(0) for batch in step], len(run.train.captions))


def _open(config: TrainConfig) -> Dataset:
    if not config.data:
        fail("data", "the folder of a dataset", "none", "give it with --data DIR")
    return open_dataset(config.data)


def _split(dataset: Dataset, name: str, split: str) -> Dataset:
    check_choice(name, split, dataset.splits)
    part = dataset.split(split)
    if len(part.images) < 2 or not part.captions:
        fail(name, "at least two images with captions", f"{len(part.images)} in {split!r}", "choose another split")
    return part


def _check_labels(config: TrainConfig, loss: RetrievalLoss) -> None:
    if config.labels == "none":
        try:
            loss.terms(torch.eye(2))
        except ValueError:
            name = config.loss["name"]
            fail("labels", f"a text encoder: the loss {name!r} learns from continuous labels", "none", "use minilm")


def _texts(dataset: Dataset, model: RetrievalModel) -> Padded:
    """Captions as the model takes them, or as its frozen encoder gives them: made once."""
    if getattr(model, "frozen_text", False):
        tell(f"reading {len(dataset.texts):,} captions once with the frozen text encoder ...")
        vectors: Padded = model.text_vectors_of(dataset.texts)  # type: ignore[operator]
        return vectors
    return model.prepare_texts(dataset.texts)


def _images(
    config: TrainConfig,
    dataset: Dataset,
    model: RetrievalModel,
    device: torch.device,
    pool: ThreadPoolExecutor,
    *,
    training: bool,
) -> ImageSource:
    if config.features is not None:
        seed = config.seed if training and config.augment else None  # views are drawn as crops of pictures are
        return feature_images(dataset.features(config.features), device, seed)
    if getattr(model, "frozen_images", False):
        tell(f"looking at {len(dataset.images):,} pictures once with the frozen image encoder ...")
        vectors: Padded = model.image_vectors_of(Pictures(dataset, pool))  # type: ignore[operator]
        return HeldImages(vectors, device)
    smallest = config.smallest_crop if training and config.augment else None
    return PictureImages(dataset, model.prepare_images, pool, config.seed, smallest)


def _validation(
    config: TrainConfig, split: Dataset, model: RetrievalModel, device: torch.device, pool: ThreadPoolExecutor
) -> Validation:
    if config.val_images is not None:
        split = split.of_images(split.image_ids[: config.val_images])
    owner = split.image_of_caption
    vectors = None if config.labels == "none" else cached_embeddings(split, config.labels)
    return Validation(
        _images(config, split, model, device, pool, training=False).everything(),
        _texts(split, model),
        owner,
        vectors,
        config.aggregate,
        # Of no seed of the run, so that runs of several seeds are judged by the same batches.
        plan_epoch(owner, config.batch, seed=0, epoch=0, distinct=config.distinct),
        None if vectors is None else BatchLabels(vectors, owner, config.aggregate, device),
    )
