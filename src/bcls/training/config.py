"""Settings of a training run, with the same names in YAML, as flags and in code; and its result."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bcls._core.config import check_field_types, convert_numbers
from bcls._core.errors import check_choice, check_number, check_whole, fail
from bcls._core.files import write_whole

Schedule = Literal["step", "cosine", "constant"]
Precision = Literal["no", "bf16", "fp16"]
Aggregate = Literal["max", "mean", "paired"]
#: Metrics of the validation split that `best` may name.
ValidationMetric = Literal["rsum", "i2t_r1", "t2i_r1", "tau", "i2t_tau_a", "t2i_tau_a"]

#: Value of `labels` for CIDEr-D of the captions, in place of a text encoder.
CIDER = "cider"


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run, as ``bcls train --config FILE`` reads them.

    Attributes:
        data: Folder of the dataset, as `bcls data import` writes it.
        out: Folder of the run: config.yaml, metrics.jsonl, checkpoints, report.html.
        model: The model: `name`, and the settings of that model (`--model.name sgr`).
        loss: The loss: `name` or a sum such as infonce+kendall-sw-hs, its arguments, and `learn_temperature`.
        train_split: Split to train on.
        val_split: Split to evaluate after each epoch; null for none.
        val_images: Number of its first images to evaluate; null for all.
        features: Name of the features of the images; without it the model reads image files.
        augment: Random crops and flips of images whose encoder is trained; random views of features that have several.
        smallest_crop: The smallest crop, as a share of the image's area.
        skip_quarantined: Leave out the items that `bcls data check` put into quarantine.
        vocabulary: Vocabulary file for models that use one; by default it is built from the training captions.
        word_threshold: Smallest number of occurrences of a word that is in the vocabulary.
        labels: Text encoder of the continuous labels, or several such as minilm+wordllama; cider for CIDEr-D, which
            only the loss sam takes; none for losses without labels.
        aggregate: How labels combine the captions of an image: the maximum, the mean, or the sampled caption alone.
        unimodal_weight: Weight of the loss between items of one modality, the term `unimodal`; 0 for none. It needs
            labels, and a `dual` model with second heads (`--model.unimodal 512`). CUSA uses 0.5 for CLIP.
        epochs: Passes over the captions. With --resume a larger number extends a finished run.
        batch: Pairs in a batch, of all processes together.
        distinct: No image twice in a batch.
        accumulate: Batches whose gradients are averaged for one optimizer step; the loss sees one batch at a time.
        micro_batch: Pairs that a process encodes at once; 0 for its whole share. The loss still sees the whole batch,
            and the encoders run twice. Saves memory; not for cross attention and batch norm.
        streaming: Compute the loss bcls from embeddings, without matrices of batch x batch; for very large batches.
        warm_negatives: Epochs at the start that use `triplet`, the sum over all negatives, instead of the loss;
            prevents collapse. The optimizer then starts with new moments.
        optimizer: Optimizer; the weight decay of adamw is decoupled.
        lr: Learning rate.
        rates: Factors on the learning rate by parameter group (`--rates.heads 2`); `loss` is the group of the
            temperature.
        weight_decay: Weight decay; not applied to vectors such as biases.
        clip: Largest norm of the gradient; null for no limit.
        schedule: Learning rate schedule: drops at the epochs of `drops`, a cosine down to 0, or constant.
        drops: Epochs after which the step schedule multiplies the learning rate by `drop`.
        drop: The factor of each drop.
        warmup: Epochs over which the learning rate rises linearly from 0; fractions are allowed.
        ema: Decay of the moving average of the weights, such as 0.999; 0 for none. The average is evaluated and saved.
            A short run uses a smaller decay, so that the average forgets the initial weights.
        precision: Mixed precision: bf16, fp16, or no for float32.
        graph: Record steps as CUDA graphs: many times faster for a small model whose inputs fit on the GPU.
        best: Validation metric that selects checkpoints/best.
        patience: Stop after this many epochs without improvement; null for never.
        save_every: Steps between checkpoints, in addition to the one after each epoch.
        keep_epochs: Keep the model of every epoch, in checkpoints/epoch-1 and so on.
        log_every: Steps between two lines of metrics.jsonl; on a GPU values are read, and NaN is detected, that often.
        resume: Continue the run in `out` from its last checkpoint.
        device: auto, cpu or cuda.
        workers: Threads that read and crop images.
        seed: Seed of the weights, the order of the captions, crops and dropout.
    """

    data: str = ""
    out: str = ""
    model: dict[str, Any] = field(default_factory=lambda: {"name": "vsepp"})
    loss: dict[str, Any] = field(default_factory=lambda: {"name": "bcls"})

    train_split: str = "train"
    val_split: str | None = "val"
    val_images: int | None = 1000
    features: str | None = None
    augment: bool = True
    smallest_crop: float = 0.4
    skip_quarantined: bool = True
    vocabulary: str | None = None
    word_threshold: int = 4

    labels: str = "minilm"
    aggregate: Aggregate = "max"
    unimodal_weight: float = 0.0

    epochs: int = 20
    batch: int = 128
    distinct: bool = True
    accumulate: int = 1
    micro_batch: int = 0
    streaming: bool = False
    warm_negatives: int = 0

    optimizer: Literal["adam", "adamw"] = "adam"
    lr: float = 5e-4
    rates: dict[str, float] = field(default_factory=dict)
    weight_decay: float = 0.0
    clip: float | None = 2.0
    schedule: Schedule = "step"
    drops: list[int] = field(default_factory=lambda: [10])
    drop: float = 0.1
    warmup: float = 0.0
    ema: float = 0.0
    precision: Precision = "no"
    graph: bool = False

    best: ValidationMetric = "rsum"
    patience: int | None = None
    save_every: int = 500
    keep_epochs: bool = False
    log_every: int = 10
    resume: bool = False

    device: str = "auto"
    workers: int = 4
    seed: int = 1

    @property
    def label_encoder(self) -> str | None:
        """Text encoder of the labels; ``None`` if there are no labels, or CIDEr-D, which has no vectors."""
        return None if self.labels in {"none", CIDER} else self.labels

    def as_dict(self) -> dict[str, Any]:
        """Plain values by name, for YAML and JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        folder: The run's folder; ``bcls.models.load(folder)`` loads its best model.
        epochs: Number of epochs trained.
        best: Metrics of the best epoch on the validation split; empty without one.
        best_epoch: The best epoch, from 1; 0 without a validation split.
        history: Metrics of every epoch.
        seconds: Training time, over all parts of the run.
    """

    folder: Path
    epochs: int
    best: dict[str, float]
    best_epoch: int
    history: list[dict[str, float]]
    seconds: float


#: Settings that may differ when a run is resumed, since they change no weight.
FREE_ON_RESUME = frozenset({"data", "out", "resume", "workers", "device", "save_every", "keep_epochs", "log_every"})

#: Smallest values of whole numbers.
_LEAST = {
    0: ("micro_batch", "warm_negatives", "seed"),
    1: ("epochs", "accumulate", "save_every", "log_every", "workers", "word_threshold", "patience"),
    2: ("batch", "val_images"),
}


def check_config(config: TrainConfig) -> TrainConfig:
    """Check the settings that can be checked without the data.

    Returns:
        The settings, with numbers in ``model`` and ``loss`` converted that YAML reads as strings, such as 5e-4.

    Raises:
        ValueError: A setting is out of its range; the message names it.
    """
    if not isinstance(config, TrainConfig):
        fail("config", "a TrainConfig", type(config).__name__, "create it with bcls.TrainConfig(data=..., out=...)")
    check_field_types(vars(config), TrainConfig)
    for least, names in _LEAST.items():
        for name in names:
            if getattr(config, name) is not None:
                check_whole(name, getattr(config, name), least=least)
    check_choice("device", config.device, ("auto", "cpu", "cuda"))
    check_number("lr", config.lr, "5e-4 suits the paper's models", above=0)
    check_number("weight_decay", config.weight_decay, "0 for none", low=0)
    check_number("warmup", config.warmup, "0 for none", low=0)
    check_number("unimodal_weight", config.unimodal_weight, "CUSA uses 0.5 for CLIP; 0 for none", low=0)
    check_number("drop", config.drop, "0.1 is usual", above=0)
    check_number("clip", 1 if config.clip is None else config.clip, "the paper uses 2; null for no limit", above=0)
    if not 0 <= config.ema < 1:
        fail("ema", "a number from 0 to below 1", config.ema, "0.999 is usual; 0 for none")
    if not 0 < config.smallest_crop <= 1:
        fail("smallest_crop", "a share above 0, up to 1", config.smallest_crop, "1 keeps the whole image")
    _check_together(config)
    return replace(config, model=convert_numbers(config.model), loss=convert_numbers(config.loss))


def _check_together(config: TrainConfig) -> None:
    """Check settings that depend on each other."""
    for name in ("model", "loss"):
        if "name" not in getattr(config, name):
            fail(name, "a mapping with a `name`", getattr(config, name), f"for example `--{name}.name NAME`")
    if "tau" in config.best and not config.label_encoder:
        expected = "a recall where there are no labels of a text encoder"
        fail("best", expected, config.best, "use rsum, or set `labels` to an encoder such as minilm")
    if config.unimodal_weight and not config.label_encoder:
        expected = "a text encoder: `unimodal_weight` learns from the embeddings of captions"
        fail("labels", expected, config.labels, "use minilm")
    if config.patience is not None and config.val_split is None:
        fail("patience", "a validation split", "val_split: null", "set `val_split`, or leave patience out")
    if config.warm_negatives >= config.epochs:
        fail("warm_negatives", f"fewer than the {config.epochs} epochs", config.warm_negatives, "1 or 2 are usual")
    if config.streaming:
        _check_streaming(config)


def _check_streaming(config: TrainConfig) -> None:
    """Check the settings that ``streaming`` restricts, since neither scores nor labels are a matrix."""
    if not config.label_encoder:
        fail("labels", "a text encoder with --streaming", config.labels, "use minilm")
    if config.aggregate == "mean":
        fail("aggregate", "max or paired with --streaming", "mean", "the loss makes these labels from embeddings")
    for key in ("unimodal_weight", "warm_negatives"):
        if value := getattr(config, key):
            fail(key, "0 with --streaming", value, "leave one of them out: it needs matrices of batch x batch")


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Settings, with dotted keys, that differ between a run and its continuation.

    Example:
        >>> differences({"lr": 1, "model": {"name": "a"}, "out": "x"}, {"lr": 2, "model": {"name": "a"}, "out": "y"})
        ['lr: 1 before, 2 now']
    """
    found = []
    for key in sorted((old.keys() | new.keys()) - FREE_ON_RESUME):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            found += [f"{key}.{one}" for one in differences(before, now)]
        elif before != now:
            found.append(f"{key}: {before!r} before, {now!r} now")
    return found


def write_yaml(path: Path, config: TrainConfig) -> None:
    """Write the settings as a file that ``bcls train --config`` reads."""
    import yaml

    write_whole(path, yaml.safe_dump(config.as_dict(), sort_keys=False, allow_unicode=True))
