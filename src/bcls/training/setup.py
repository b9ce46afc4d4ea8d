"""Set-up of a run: opens the data, builds model, loss, optimizer and inputs from the settings; and the validation.

Checks come first, encoders last: a frozen encoder may take minutes, and no setting should fail after it.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bcls._core.errors import check_choice, fail, prefix_errors, quoted
from bcls._core.extras import MissingExtraError
from bcls.data import Dataset, Vocabulary, open_dataset
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls
from bcls.labels.cache import cache_folder, cached_embeddings, fingerprint, read_manifest
from bcls.labels.caption_metrics import ptb_tokens
from bcls.labels.relevance import relevance
from bcls.losses import RetrievalLoss, StreamingBCLSLoss
from bcls.models import build, check_features
from bcls.models.base import RetrievalModel
from bcls.models.config import DETECTOR_REGIONS, MODELS, import_class, model_config
from bcls.models.layers import Padded
from bcls.training.batch_labels import BatchLabels, CiderLabels, LabelSource
from bcls.training.checkpoint import Learner, MovingAverage, decay_for
from bcls.training.config import CIDER, TrainConfig
from bcls.training.cuda_graph import graph_obstacle
from bcls.training.distributed import start_accelerator
from bcls.training.loader import CaptionInputs, Loader, caption_inputs, image_source
from bcls.training.metrics_log import log_line
from bcls.training.optimization import LOSS_GROUP, make_loss, make_optimizer, make_streaming_loss
from bcls.training.sampler import Indices, plan_epoch

#: Models that need features unless they have an image encoder; a model of your own may also read images.
_FEATURE_MODELS = ("vsepp", "sgr", "saf", "sgraf", "dual")

#: Images whose inputs a dry run prepares.
_DRY_RUN_IMAGES = 16


@dataclass(frozen=True)
class Validation:
    """The inputs of the validation split.

    Attributes:
        images: All images, as the model's ``similarity`` takes them.
        texts: All captions, as the model's ``similarity`` takes them.
        image_of_caption: ``(C,)`` index of each caption's image.
        labels: ``(N, C)`` labels; without them there is no tau. ``"paired"`` has no single caption here and uses the
            maximum.
        batches: Captions of each batch of the validation loss, the same after every epoch.
        batch_labels: Makes the labels of these batches, as in training; ``None`` without labels.
    """

    images: Any
    texts: Padded
    image_of_caption: Indices
    labels: npt.NDArray[np.float32] | None
    batches: list[Indices]
    batch_labels: LabelSource | None


@dataclass(frozen=True)
class TrainState:
    """The components of a run; see :func:`set_up`."""

    config: TrainConfig
    accelerator: Accelerator
    train: Dataset
    loader: Loader
    validation: Validation | None
    learner: Learner
    #: The model as DistributedDataParallel and mixed precision wrap it.
    parallel: torch.nn.Module
    #: The optimizer as the gradient scaler wraps it.
    optimizer: Any
    pool: ThreadPoolExecutor
    #: The loss of a training step with ``streaming``; the validation uses that of the learner.
    streaming: StreamingBCLSLoss | None = None

    @property
    def model(self) -> RetrievalModel:
        """The model itself."""
        return self.learner.model

    @cached_property
    def records(self) -> bool:
        """Whether steps are recorded as CUDA graphs."""
        if self.config.graph and not self.loader.on_device:
            log_line("note: CUDA graphs are not used: the inputs do not fit on the GPU, or are image files")
        return self.config.graph and self.loader.on_device

    def plan(self, epoch: int) -> list[list[Indices]]:
        """Captions of the batches of each optimizer step of an epoch."""
        config, least = self.config, max(2, self.accelerator.num_processes)
        owner = self.train.image_of_caption
        batches = plan_epoch(owner, config.batch, config.seed, epoch, distinct=config.distinct, least=least)
        return [batches[start : start + config.accumulate] for start in range(0, len(batches), config.accumulate)]

    def unused_captions(self) -> int:
        """How many captions the first epoch does not use."""
        return len(self.train.captions) - sum(len(batch) for step in self.plan(0) for batch in step)

    def close(self) -> None:
        """Stop the threads, and give the model its own ``forward`` back."""
        self.pool.shutdown()
        self.accelerator.unwrap_model(self.parallel, keep_fp32_wrapper=False)


def set_up(
    config: TrainConfig,
    model: RetrievalModel | None = None,
    dataset: Dataset | None = None,
    *,
    labels: LabelSource | None = None,
    show_progress: bool = True,
    dry_run: bool = False,
) -> TrainState:
    """Open the data and build model, loss, optimizer and inputs; all settings are checked before an encoder runs.

    Args:
        config: Settings, as :func:`bcls.training.config.check_config` returns them.
        model: A model in place of that of the settings.
        dataset: An open dataset in place of that of the settings.
        labels: Makes the labels of training batches, in place of those of the settings.
        show_progress: Show the progress of frozen encoders.
        dry_run: Prepare the inputs of a few images only, and neither labels nor validation.

    Raises:
        ValueError: A setting is wrong, or settings, data and model do not match.
    """
    loss = make_loss(config.loss)
    check_loss_labels(config, loss)
    accelerator = start_accelerator(config)
    device = accelerator.device
    obstacle = graph_obstacle(config, device, accelerator.num_processes) if config.graph else None
    if obstacle is not None:
        expected = "a run whose steps can be captured as CUDA graphs"
        fail("graph", expected, f"one that cannot: {obstacle}", "leave --graph out")
    streaming = None
    if config.streaming:
        streaming = make_streaming_loss(config.loss, dist.group.WORLD if accelerator.num_processes > 1 else None)
        if labels is not None:
            fail("labels", "those of the settings, with `streaming`", type(labels).__name__, "leave one of them out")
    train_split, val_split = open_splits(config, dataset)
    torch.manual_seed(config.seed)
    if model is None:
        model = build_model(config, train_split)
    check_unimodal(config, model)
    check_encoders(config, model)
    if config.loss.get("learn_temperature"):
        initial = (getattr(model, name, None) for name in ("initial_temperature", "initial_bias"))
        loss = make_loss(config.loss, *initial)
    model.to(device)
    loss.to(device)
    groups, learned = model.parameter_groups(), list(loss.parameters())
    optimizer = make_optimizer({**groups, LOSS_GROUP: learned} if learned else groups, config, device)
    if labels is None or val_split is not None:
        check_label_encoder(config, train_split)
    if config.labels == CIDER and labels is None:
        ptb_tokens(CIDER, ["a"])  # raises if a program is not available

    # From here on encoders run.
    pool = ThreadPoolExecutor(config.workers, "bcls-read")
    inputs = train_split.of_images(train_split.image_ids[:_DRY_RUN_IMAGES]) if dry_run else train_split
    images = image_source(config, inputs, model, pool, training=True, show_progress=show_progress)
    texts = CaptionInputs(caption_inputs(inputs, model, show_progress=show_progress), device)
    if labels is None and not dry_run:
        with accelerator.main_process_first():  # the main process embeds the captions if that was not done before
            vectors = cached_embeddings(train_split, config.label_encoder) if config.label_encoder else None
        labels = make_labels(config, train_split, vectors, device)
    rank, ranks = accelerator.process_index, accelerator.num_processes
    unimodal = config.unimodal_weight > 0 and labels is not None
    loader = Loader(images, texts, inputs.image_of_caption, device, labels, rank, ranks, unimodal, config.streaming)
    steps = config.epochs * ceil(len(train_split.captions) / (config.batch * config.accumulate))
    average = MovingAverage(model, decay_for(config.ema, steps)) if config.ema else None
    parallel = accelerator.prepare_model(model)
    wrapped = accelerator.prepare_optimizer(optimizer)
    learner = Learner(model, loss, optimizer, average, accelerator.scaler)
    validation = None
    if val_split is not None and not dry_run:
        validation = make_validation(config, val_split, model, pool, show_progress=show_progress)
    return TrainState(config, accelerator, train_split, loader, validation, learner, parallel, wrapped, pool, streaming)


def open_splits(config: TrainConfig, dataset: Dataset | None) -> tuple[Dataset, Dataset | None]:
    """Open the training and the validation split, and check that they have the features of the settings.

    Args:
        config: Settings of the run.
        dataset: A dataset that is open already, in place of ``config.data``.

    Raises:
        ValueError: The dataset, a split or the features do not exist.
    """
    if dataset is None:
        if not config.data:
            fail("data", "the folder of a dataset", "none", "give it with --data DIR")
        dataset = open_dataset(config.data)
    if config.skip_quarantined:
        dataset = dataset.without_quarantined()
    splits = []
    for key, name in (("train_split", config.train_split), ("val_split", config.val_split)):
        if name is None:
            continue
        check_choice(key, name, dataset.splits)
        split = dataset.split(name)
        if len(split.images) < 2 or not split.captions:
            fail(key, "at least two images with captions", f"{len(split.images)} in {name!r}", "choose another split")
        if config.features is not None:
            split.features(config.features)  # raises if they do not exist
        splits.append(split)
    return splits[0], splits[1] if config.val_split is not None else None


def build_model(config: TrainConfig, train: Dataset) -> RetrievalModel:
    """Build the model of the settings; the width of features and the vocabulary come from the data unless given.

    Raises:
        ValueError: The model's settings are wrong, do not match the features, or need features and there are none.
    """
    settings, shape = dict(config.model), None
    name, takes_features = settings.get("name"), reads_features(settings)
    if config.features is not None:
        shape = train.features(config.features).shape
        if takes_features:
            settings.setdefault("features", shape[-1])
    elif takes_features and name in _FEATURE_MODELS:
        regions = "global" if name in ("vsepp", "dual") else "crops-36"
        command = f"bcls data features {quoted(train.folder)} --backbone efficientnet-lite0 --regions {regions}"
        hint = f"run `{command} --name lite0`, then set --features lite0"
        fail("features", f"image features, which the model {name} reads", "none", hint)
    with prefix_errors("model."):
        parsed = model_config(settings, "model")
    if shape is not None:
        check_features(parsed, shape, folder=train.folder)
        if getattr(parsed, "regions", None) == DETECTOR_REGIONS != shape[1]:
            got = f"{shape[1]} in {config.features!r}"
            fail("features", f"{DETECTOR_REGIONS} regions per image", got, f"set --model.regions {shape[1]}")
    vocabulary = None
    if hasattr(parsed, "words") and getattr(parsed, "text", "gru") == "gru":  # others read captions by themselves
        if config.vocabulary is None:
            vocabulary = Vocabulary.build(train.texts, threshold=config.word_threshold)
        else:
            vocabulary = Vocabulary.read(config.vocabulary)
    with prefix_errors("model."):
        return build(parsed, vocabulary=vocabulary)


def reads_features(settings: Mapping[str, Any]) -> bool:
    """Whether the width of the image features is a setting of a model, also one of your own."""
    name = settings.get("name")
    if settings.get("backbone") or not isinstance(name, str) or name not in MODELS:
        return False
    if name == "dual":
        return settings.get("image") == "features"
    return "features" in {one.name for one in fields(import_class(MODELS[name][0]))}


def make_labels(
    config: TrainConfig, split: Dataset, embeddings: npt.NDArray[Any] | None, device: torch.device
) -> LabelSource | None:
    """The labels of batches of a split: from embeddings of its captions, CIDEr-D, or none."""
    if embeddings is not None:
        return BatchLabels(embeddings, split.image_of_caption, config.aggregate, device)
    return CiderLabels(split.texts, split.image_of_caption, device) if config.labels == CIDER else None


def check_loss_labels(config: TrainConfig, loss: RetrievalLoss) -> None:
    """Check that a loss that needs continuous labels has them, on its scale.

    Raises:
        ValueError: It needs labels, and ``labels`` is none; or it needs them in [-1, 1], and they are CIDEr-D.
    """
    name = config.loss["name"]
    if config.labels == CIDER and loss.bounded:
        fail("labels", f"a text encoder: the loss {name!r} takes labels in [-1, 1]", CIDER, "use minilm, or loss sam")
    if config.labels == "none":
        try:
            loss.terms(torch.eye(2))
        except ValueError:
            fail("labels", f"a text encoder: the loss {name!r} learns from continuous labels", "none", "use minilm")


def check_label_encoder(config: TrainConfig, dataset: Dataset) -> None:
    """Check that the text encoder of the labels is available, if they have one.

    Raises:
        ValueError: It does not exist.
        MissingExtraError: Its package is not installed, and the dataset's folder does not have its embeddings.
    """
    try:
        if config.label_encoder:
            fingerprint(config.label_encoder)
    except MissingExtraError:
        if read_manifest(cache_folder(dataset.folder, str(config.label_encoder))) is None:
            raise
    except ValueError as error:
        raise ValueError(str(error).replace("`encoder`", "`labels`", 1)) from error


def check_unimodal(config: TrainConfig, model: RetrievalModel) -> None:
    """Check that the model has second heads if ``unimodal_weight`` is set, and only then.

    Raises:
        ValueError: Only one of the two is there.
    """
    if config.unimodal_weight and not hasattr(model, "unimodal"):
        hint = "use the model dual with --model.unimodal 512, or leave the weight out"
        fail("unimodal_weight", "a model with second heads", f"{type(model).__name__} without them", hint)
    if hasattr(model, "unimodal") and not config.unimodal_weight:
        hint = "set --unimodal-weight, such as 0.5, or leave the heads out"
        fail("model.unimodal", "a weight of the loss that trains the second heads", "unimodal_weight: 0", hint)


def check_encoders(config: TrainConfig, model: RetrievalModel) -> None:
    """Check that a model can be trained with ``micro_batch`` and ``streaming``.

    Raises:
        ValueError: Its scores are not products of vectors, or a batch norm depends on the other items of a batch.
    """
    for key in ("micro_batch", "streaming"):
        if getattr(config, key) and type(model).similarity is not RetrievalModel.similarity:
            got = f"{type(model).__name__}, whose scores need the regions and words of both sides together"
            fail(key, "a model with one vector an item, such as vsepp or dual", got, "leave it out")
    if config.micro_batch:
        # Those of frozen encoders stay in eval mode.
        parts = model.train().named_modules()
        norms = [name for name, part in parts if isinstance(part, _BatchNorm) and part.training]
        if norms:
            got = f"{len(norms)} batch norms such as {norms[0]}, whose statistics would be those of a micro batch"
            fail("micro_batch", "encoders without batch norm in training", got, "freeze the encoder, or leave it out")


def make_validation(
    config: TrainConfig, split: Dataset, model: RetrievalModel, pool: ThreadPoolExecutor, *, show_progress: bool
) -> Validation:
    """The inputs of the validation split, its labels, and the batches of the validation loss."""
    if config.val_images is not None:
        split = split.of_images(split.image_ids[: config.val_images])
    owner = split.image_of_caption
    vectors = labels = None
    if config.label_encoder:
        vectors = cached_embeddings(split, config.label_encoder)
        labels = relevance(vectors, vectors, owner, owner, "max" if config.aggregate == "paired" else config.aggregate)
    return Validation(
        image_source(config, split, model, pool, training=False, show_progress=show_progress).everything(),
        caption_inputs(split, model, show_progress=show_progress),
        owner,
        labels,
        # Independent of the run's seed, so that runs with different seeds are evaluated on the same batches.
        plan_epoch(owner, config.batch, seed=0, epoch=0, distinct=config.distinct),
        make_labels(config, split, vectors, model.device),
    )


def data_identity(dataset: Dataset) -> dict[str, Any]:
    """Name, sizes and a hash of the captions, to detect that a run is resumed with other data."""
    digest = hashlib.sha256()
    for caption in dataset.captions:
        digest.update(f"{caption.caption_id}\t{caption.image_id}\t{caption.text}\n".encode())
    counts = {"images": len(dataset.images), "captions": len(dataset.captions)}
    return {"name": dataset.name, **counts, "sha256": digest.hexdigest()}


def validate(model: RetrievalModel, split: Validation, loss: nn.Module) -> dict[str, float]:
    """Evaluate a model on the validation split.

    Args:
        model: The model.
        split: The inputs.
        loss: The loss of the run.

    Returns:
        Recalls with their sum ``rsum``; with labels Kendall's tau-a in both directions and their mean ``tau``; and
        ``loss``, the mean over batches of the training size, without dropout and crops.
    """
    # On a GPU counting pairs takes milliseconds, on a CPU as long as an epoch of a small model.
    similarity = model.similarity_on_device(split.images, split.texts)
    metrics = recalls(similarity, split.image_of_caption)
    if split.labels is not None:
        taus = kendall(similarity, split.labels)
        metrics |= {key: taus[key] for key in ("i2t_tau_a", "t2i_tau_a")}
        metrics["tau"] = (taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2
    if split.batches:
        metrics["loss"] = _mean_loss(similarity, split, loss)
    return metrics


def _mean_loss(similarity: Tensor, split: Validation, loss: nn.Module) -> float:
    device = similarity.device
    labels = split.batch_labels
    images = torch.from_numpy(split.image_of_caption).to(device)
    values = []
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        for captions in split.batches:
            chosen = torch.from_numpy(captions).to(device)
            owner = images[chosen]
            scores = similarity[owner[:, None], chosen].float()
            values.append(loss(scores, None if labels is None else labels(chosen), image_ids=owner))
        return float(torch.stack(values).mean())
