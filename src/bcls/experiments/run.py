"""One run of a sweep: train or resume it, load its best checkpoint, compute metrics and write the result."""

import hashlib
import io
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import TIMEOUT_MAX, Event, Timer
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls._core.files import write_whole
from bcls._core.locks import lock_folder
from bcls.data.dataset import Dataset, open_dataset
from bcls.data.vocabulary import tokenize
from bcls.evaluation.evaluator import CaptionVectors
from bcls.evaluation.recall import QueryRanks
from bcls.evaluation.scores import score_model
from bcls.experiments import metrics
from bcls.experiments.plan import TRIAL, PlannedRun
from bcls.experiments.results import RANKS, failed_member, lacks_test, read_result, run_folder, write_result
from bcls.experiments.sweep_file import Sweep, SweepSettings
from bcls.labels.cache import cached_embeddings
from bcls.labels.caption_metrics import CiderD
from bcls.labels.encoders import encoder_parts
from bcls.labels.relevance import relevance
from bcls.models import load
from bcls.models.base import RetrievalModel
from bcls.models.layers import Padded
from bcls.training.batch_labels import BatchLabels
from bcls.training.config import Result, TrainConfig
from bcls.training.distributed import start_accelerator
from bcls.training.metrics_log import DivergedError
from bcls.training.run_folder import BEST, CHECKPOINTS, CONFIG, LAST, describe
from bcls.training.setup import build_model
from bcls.training.train import train

#: Seconds between checkpoints of a run. An epoch of a small model takes a second, and a checkpoint half of one.
SAVE_SECONDS = 120.0
# Image-caption pairs of a split up to which labels of other kinds are computed, which takes seconds for 5 million.
_MOST_PAIRS = 20_000_000
# Settings of a model that the output of its frozen encoder depends on, by model and side.
_ENCODER_SETTINGS = {
    ("dual", "image"): ("name", "image", "model", "image_view", "image_pooling", "features", "tune_image"),
    ("dual", "text"): ("name", "text", "model", "text_pooling", "tune_text"),
    ("vsepp", "image"): ("name", "backbone", "finetune"),
}


@dataclass(frozen=True)
class SweepContext:
    """What all runs of a sweep share.

    Attributes:
        sweep: The sweep.
        settings: Output folder, device and options.
        shared: The dataset and the outputs of frozen encoders.
        judgements: Human ratings, if they may be used.
        until: When training stops with a checkpoint, a time of ``time.monotonic``.
    """

    sweep: Sweep
    settings: SweepSettings
    shared: "SharedData"
    judgements: metrics.Judgements | None
    until: float

    @property
    def out(self) -> Path:
        """Folder of the sweep."""
        return Path(self.settings.out)


def finish_run(context: SweepContext, run: PlannedRun) -> None:
    """Complete a run: train or resume it if necessary, then compute the missing metrics and write the result.

    Raises:
        KeyboardInterrupt: If it was interrupted; the next call resumes from the checkpoint.
        ValueError: If the data does not match the settings.
    """
    folder, search = run_folder(context.out, run), context.sweep.search
    lost = failed_member(context.out, run)
    if lost is not None:
        reason = f"a member failed: {lost.name}, seed {lost.seed}"
        write_result(context.out, run, {"failed": reason, **_provenance(context)})
        return
    found = read_result(context.out, run)
    found = None if "failed" in (found or {}) else found
    searched = None if found is None else found.get("trial", found.get("validation"))
    result = found or {"seconds": 0.0, **_provenance(context)}
    if not run.members and (found is None or "again" in found or not (folder / CHECKPOINTS / BEST).is_dir()):
        if found is not None:  # until the end, the checkpoints of a second training do not belong to this result
            write_result(context.out, run, {**found, "again": True})
        try:
            best = train_run(context, run).best
        except DivergedError as error:
            write_result(context.out, run, {"failed": str(error), **_provenance(context)})
            return
        result = {**metrics.training_history(folder), **_provenance(context)}
        if run.phase == TRIAL and search is not None and search.measure in metrics.EPOCH_METRICS:
            result |= {"validation": best, "brief": True}  # enough to choose by
    started = time.monotonic()
    if run.phase != TRIAL or "brief" not in result:
        models = [_load_trained(context, one) for one in run.members or (run,)]
        if "validation" not in result or result.pop("brief", False):
            result["validation"] = _metrics(context, run, models, "validation")
        untested = "test" in (found or {}) and "test" not in result  # trained again after a final sweep
        if run.phase != TRIAL and (untested or lacks_test(result, context.sweep, context.settings)):
            result["test"] = _metrics(context, run, models, "test")
    result["evaluate_seconds"] = result.get("evaluate_seconds", 0.0) + time.monotonic() - started
    if search is not None and searched not in (None, result["validation"]):
        result["trial"] = searched  # the metrics that the choice was based on
    write_result(context.out, run, result)
    # The optimizer state is several times as large as the model, and a finished run does not need it.
    shutil.rmtree(folder / CHECKPOINTS / LAST, ignore_errors=True)


def train_run(context: SweepContext, run: PlannedRun) -> Result:
    """Train a run into its folder, or resume it, exactly as ``bcls train`` does.

    Raises:
        DivergedError: If the loss is NaN or infinite.
        KeyboardInterrupt: If it was interrupted; a checkpoint was written.
        ValueError: If settings, data and model do not match.
    """
    config, shared, stop = _config(context, run), context.shared, Event()
    labels = None
    if run.noise:
        if not config.label_encoder:
            fail("noise", "a run with labels", f"labels: {config.labels}", "name a text encoder, such as minilm")
        split, device = shared.split(config.train_split, config), start_accelerator(config).device
        vectors = np.asarray(cached_embeddings(split, config.label_encoder))
        labels = BatchLabels(vectors, split.image_of_caption, config.aggregate, device, run.noise)
    options: dict[str, Any] = {"report": False, "save_seconds": SAVE_SECONDS, "stop": stop}
    timer = Timer(min(context.until - time.monotonic(), TIMEOUT_MAX), stop.set)
    timer.daemon = True
    timer.start()
    try:
        trained = train(config, model=shared.model(config), dataset=shared.dataset, labels=labels, **options)
    finally:
        timer.cancel()
    if stop.is_set():  # during the last validation, after which training does not check it
        raise KeyboardInterrupt
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # for other processes on the same GPU
    return trained


class SharedData:
    """Data that is read once for all runs of a process: the dataset, and the outputs of frozen encoders.

    A frozen encoder may take minutes for a dataset on which a run then trains in seconds. Its outputs are cached in
    files, for other processes and later calls as well.

    Args:
        data: Folder of the dataset.
        cache: Folder for the outputs of frozen encoders.

    Attributes:
        dataset: The whole dataset.
    """

    def __init__(self, data: str | Path, cache: Path) -> None:
        self.dataset, self._cache = open_dataset(data), cache
        self._others: dict[str, dict[str, NDArray[np.float32]]] = {}

    def split(self, name: str, config: TrainConfig) -> Dataset:
        """One split, without quarantined items if the settings exclude them."""
        return (self.dataset.without_quarantined() if config.skip_quarantined else self.dataset).split(name)

    def model(self, config: TrainConfig) -> RetrievalModel:
        """A new model with the initial weights that ``bcls train`` would draw from the same seed."""
        torch.manual_seed(config.seed)
        return self.lend(build_model(config, self.split(config.train_split, config)))

    def lend(self, model: RetrievalModel) -> RetrievalModel:
        """Let the frozen encoders of a model use the cache.

        Args:
            model: Any model; one without frozen encoders is not changed.

        Returns:
            The same model.
        """
        for side in ("text", "image"):
            name = f"{side}_vectors_of"
            if hasattr(model, name):
                # An attribute of this object hides the method; it is not part of a saved model.
                encoder = encoder_settings(asdict(model.config), side)
                model.__dict__[name] = partial(self._cached, side, encoder, getattr(model, name))
        return model

    def captions(self, split: Dataset, encoder: str | None) -> CaptionVectors | None:
        """Caption vectors of a label encoder, from the cache in the dataset's folder; ``None`` without one."""
        return None if encoder is None else CaptionVectors(split, encoder, metrics.caption_vectors(split, encoder))

    def other_labels(self, split: Dataset, encoder: str) -> dict[str, NDArray[np.float32]]:
        """Labels of WordLlama and of CIDEr-D for a split, unless ``encoder`` contains them; none for large splits."""
        key = _hash(caption.caption_id for caption in split.captions)
        if key not in self._others and len(split.images) * len(split.captions) <= _MOST_PAIRS:
            owner, images = split.image_of_caption, np.arange(len(split.images))
            cider = CiderD([tokenize(text) for text in split.texts], owner)
            every = [cider(part, np.arange(len(owner))) for part in np.array_split(images, 1 + len(images) // 100)]
            vectors = np.asarray(cached_embeddings(split, "wordllama"), np.float32)
            self._others[key] = {"cider": np.concatenate(every), "wordllama": relevance(vectors, vectors, owner, owner)}
        used = encoder_parts(encoder)
        return {name: labels for name, labels in self._others.get(key, {}).items() if name not in used}

    def _cached(self, side: str, encoder: dict[str, Any], compute: Callable[[Any], Padded], items: Any) -> Padded:
        """Texts, or :class:`bcls.evaluation.scores.LazyImages`, as a frozen encoder encodes them."""
        names = items if side == "text" else [str(items.dataset.folder), *items.dataset.image_ids]
        key = _hash([side, repr(sorted(encoder.items())), *names])
        return cached_file(self._cache / f"{side}-{key[:16]}.safetensors", partial(compute, items))


def encoder_settings(config: dict[str, Any], side: str) -> dict[str, Any]:
    """The settings of a model that the output of one frozen encoder depends on; all settings of an unknown model.

    Example:
        >>> encoder_settings({"name": "vsepp", "backbone": "resnet18", "finetune": False, "width": 8}, "image")
        {'name': 'vsepp', 'backbone': 'resnet18', 'finetune': False}
    """
    return {key: config[key] for key in _ENCODER_SETTINGS.get((config["name"], side), config)}


def cached_file(path: Path, compute: Callable[[], Padded]) -> Padded:
    """Read features from a file, or compute and write them; other processes wait for the one that computes."""
    from safetensors.torch import load_file, save

    with lock_folder(path.parent, name=f"{path.stem}.lock", wait=True):
        if not path.is_file():
            made = compute()
            lengths = {} if made.lengths is None else {"lengths": made.lengths.contiguous()}
            write_whole(path, save({"values": made.values.contiguous(), **lengths}))
    found = load_file(path)
    return Padded(found["values"], found.get("lengths"))


def _hash(strings: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for string in strings:
        digest.update(f"{len(string)}:{string}".encode())
    return digest.hexdigest()


def _config(context: SweepContext, run: PlannedRun) -> TrainConfig:
    folder, settings = run_folder(context.out, run), context.settings
    location = {"data": str(context.shared.dataset.folder), "out": str(folder), "resume": (folder / CONFIG).is_file()}
    machine = {"device": settings.device, "graph": settings.graph, "seed": run.seed}
    return TrainConfig(**{**run.settings, **location, **machine})


def _load_trained(context: SweepContext, run: PlannedRun) -> tuple[TrainConfig, RetrievalModel]:
    """The settings and the best model of a trained run."""
    model = load(str(run_folder(context.out, run) / CHECKPOINTS / BEST))
    model.to("cuda" if context.settings.device != "cpu" and torch.cuda.is_available() else "cpu")
    return _config(context, run), context.shared.lend(model)


def _metrics(
    context: SweepContext, run: PlannedRun, models: list[tuple[TrainConfig, RetrievalModel]], kind: str
) -> dict[str, float]:
    """Compute the metrics of a run, or of an ensemble, on the validation or the test split."""
    sweep, shared, config, test = context.sweep, context.shared, models[0][0], kind == "test"

    def scores(images: Dataset, texts: list[str]) -> NDArray[np.float32]:
        matrices = [score_model(model, images, texts, one.features) for one, model in models]
        mean: NDArray[np.float32] = np.mean(matrices, axis=0, dtype=np.float32) if len(matrices) > 1 else matrices[0]
        return mean

    def photo_scores(photos: Sequence[str], texts: Sequence[str]) -> NDArray[np.float32]:
        images = shared.dataset.of_images(photos)  # in the order of the dataset
        return scores(images, list(texts))[[images.image_ids.index(photo) for photo in photos]]

    split = shared.split(sweep.test_split if test else str(config.val_split), config)
    options: dict[str, Any] = {"folds": sweep.folds, "eccv": sweep.eccv} if test else {}
    captions = shared.captions(split, config.label_encoder)
    options["device"] = context.settings.device
    similarity = scores(split, split.texts)
    computed, ranks = metrics.split_metrics(split, similarity, captions, **options)
    if test and config.label_encoder is not None:
        others = shared.other_labels(split, config.label_encoder)
        computed |= metrics.other_label_metrics(similarity, others, context.settings.device)
    by_photo: dict[str, NDArray[np.float64]] | None = {} if test else None
    parts = metrics.PARTS if test else ("choice",) if sweep.chooses_on_ratings else ()
    if context.judgements is not None and parts:
        computed |= metrics.human_agreement(context.judgements, photo_scores, parts, by_photo)
    _write_ranks(context.out / RANKS / f"{run.key}-{kind}.npz", ranks, split.image_of_caption, by_photo or {})
    return computed


def _write_ranks(
    path: Path, ranks: QueryRanks, owner: NDArray[np.int64], by_photo: dict[str, NDArray[np.float64]]
) -> None:
    """Write the ranks of the queries, the image of each caption, and values by photo: what tests over images need."""
    path.parent.mkdir(exist_ok=True)
    packed = io.BytesIO()
    arrays: dict[str, Any] = {key: values.astype(np.float32) for key, values in by_photo.items()}
    for name, array in (("i2t", ranks.i2t), ("t2i", ranks.t2i), ("owner", owner)):
        arrays[name] = array.astype(np.uint32)
    np.savez_compressed(packed, **arrays)
    write_whole(path, packed.getvalue())


def _provenance(context: SweepContext) -> dict[str, Any]:
    """Dataset, command, versions and hardware of a result."""
    environment = describe(1)
    kept = ("bcls", "revision", "python", "packages", "gpus", "threads", "started")
    command = shlex.join(["bcls", *sys.argv[1:]])
    return {"dataset": context.shared.dataset.name, "command": command, **{key: environment[key] for key in kept}}
