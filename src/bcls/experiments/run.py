"""What several runs of one process share: the opened dataset, and what frozen encoders made of it.

Training for a sweep: the loop of ``bcls train``, without the page that it draws for each single run.

One run of a sweep: train, take the best checkpoint of the validation split, compute figures, write them down.
"""

import gc
import hashlib
import io
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls._core.files import write_whole
from bcls.data.dataset import Dataset, open_dataset
from bcls.evaluation.evaluator import CaptionVectors
from bcls.experiments.metrics import (
    MEASURES,
    PARTS,
    Judgements,
    NoisyLabels,
    best_look,
    course,
    people_figures,
    scores_of,
    split_figures,
)
from bcls.experiments.plan import TRIAL, Planned
from bcls.experiments.results import RANKS, held, read_result, run_folder, write_result
from bcls.experiments.sweep_file import Sweep
from bcls.labels.cache import cached_embeddings
from bcls.models.folder import load
from bcls.models.padded import Padded
from bcls.training.config import TrainConfig
from bcls.training.distributed import start_accelerator
from bcls.training.metrics_log import DivergedError
from bcls.training.run_folder import BEST, CHECKPOINTS, CONFIG, LAST, describe
from bcls.training.setup import build_model
from bcls.training.train import train

if TYPE_CHECKING:
    from bcls.data.dataset import Dataset
    from bcls.evaluation.recall import QueryRanks
    from bcls.models.base import RetrievalModel

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


#: Epochs of a small model take a second or less, and writing a checkpoint half of one; with a dozen runs side by side
#: each writes its own.
SAVE_SECONDS = 120.0


@dataclass(frozen=True)
class Job:
    """A run to train."""

    config: TrainConfig
    """Settings. What lies in ``config.out`` was begun with the same ones: the folder is named after them."""
    model: "RetrievalModel"
    """Trained in place."""
    noise: float = 0.0
    """Standard deviation of noise in the training labels, see :class:`NoisyLabels`."""


def train_runs(jobs: Sequence[Job], dataset: "Dataset") -> list[DivergedError | None]:
    """Train runs of a sweep one after another, or resume them from their last checkpoints.

    Args:
        jobs: The runs.
        dataset: Images and captions.

    Returns:
        For each run ``None``, or why it diverged.

    Raises:
        ValueError: Settings, data and model do not fit together.
        KeyboardInterrupt: It was stopped; the run wrote a checkpoint.
    """
    ends: list[DivergedError | None] = []
    stop = Event()
    for job in jobs:
        config = replace(job.config, resume=(Path(job.config.out) / CONFIG).exists())
        try:
            train(
                config,
                model=job.model,
                dataset=dataset,
                labels=_noisy(job, dataset) if job.noise else None,
                report=False,
                show_progress=len(jobs) == 1,
                save_seconds=SAVE_SECONDS,
                stop=stop,
            )
            ends.append(None)
        except DivergedError as error:
            ends.append(error)
        if stop.is_set():  # during the last validation, after which no step checks it
            raise KeyboardInterrupt
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()  # memory of recorded steps, which no other process could use
    return ends


def _noisy(job: Job, dataset: "Dataset") -> NoisyLabels:
    config = job.config
    if config.labels == "none":
        fail("noise", "a run with labels", "labels: none", "name a text encoder, such as minilm")
    split = (dataset.without_quarantined() if config.skip_quarantined else dataset).split(config.train_split)
    vectors, owner = np.asarray(cached_embeddings(split, config.labels)), split.image_of_caption
    return NoisyLabels(vectors, owner, config.aggregate, start_accelerator(config).device, noise=job.noise)


@dataclass(frozen=True)
class Bench:
    """What every run of a sweep needs."""

    sweep: Sweep
    """The file."""
    out: Path
    """Folder of the sweep."""
    shared: Shared
    """The data."""
    pool: ThreadPoolExecutor
    """Threads that read pictures."""
    judgements: Judgements | None
    """What people said, where it may be looked at."""
    final: bool
    """Whether the test split may be looked at."""
    device: str
    """auto, cpu or cuda."""
    graph: bool
    """Whether steps are recorded as CUDA graphs."""


def wants_work(out: Path, run: Planned, *, final: bool) -> bool:
    """Whether a run is unfinished, was judged as a trial only, or is not tested though it may be."""
    result = read_result(out, run)
    if result is None:
        return True
    if run.phase == TRIAL or "failed" in result:
        return False
    return "brief" in result or (final and "test" not in result)


def do_runs(bench: Bench, runs: Sequence[Planned]) -> None:
    """Bring runs to their end: train them side by side or go on with them, then compute what is missing.

    Raises:
        KeyboardInterrupt: It was stopped; the next call goes on from the checkpoints.
        ValueError: The data does not fit the settings.
    """
    new = [run for run in runs if not run.members and not _is_trained(bench, run)]
    jobs = [_job(bench, run) for run in new]
    for run in new:
        found = read_result(bench.out, run)
        if found is not None:  # what a second training has written when it is stopped are not the weights of the first
            write_result(bench.out, run, {**found, "again": True})
    ends = train_runs(jobs, bench.shared.dataset) if jobs else []
    trained = {run.key: (job, end) for run, job, end in zip(new, jobs, ends, strict=True)}
    for run in runs:
        job, end = trained.get(run.key, (None, None))
        if end is not None:
            write_result(bench.out, run, {"failed": str(end), **_about(bench)})
        else:
            _judge(bench, run, job, beside=len(new))


def _is_trained(bench: Bench, run: Planned) -> bool:
    """Whether a run needs no training: it has all its figures, or the weights to compute them from."""
    if not wants_work(bench.out, run, final=bench.final):
        return True
    result = read_result(bench.out, run)
    return result is not None and "again" not in result and (run_folder(bench.out, run) / CHECKPOINTS / BEST).is_dir()


def _judge(bench: Bench, run: Planned, job: Job | None, *, beside: int) -> None:
    """Compute what is missing of a run, and write it down."""
    found = read_result(bench.out, run)
    searched = None if found is None else found.get("trial", found.get("validation"))
    models: list[tuple[TrainConfig, RetrievalModel]]
    result: dict[str, Any]
    if run.members:
        models = [_trained(bench, member) for member in run.members]
        result = found or {"seconds": 0.0, **_about(bench)}
    elif job is not None:
        _take_best(job.model, run_folder(bench.out, run))
        models = [(job.config, job.model)]
        result = {**course(run_folder(bench.out, run)), "beside": beside, **_about(bench)}
    else:
        models = [_trained(bench, run)]
        result = found or {}
    started = time.monotonic()
    if _seen_enough(bench, run):
        result |= {"validation": best_look(run_folder(bench.out, run)), "brief": True}
    elif "validation" not in result or result.pop("brief", False):
        result["validation"] = _figures(bench, run, models, "validation", str(models[0][0].val_split))
    if bench.final and run.phase != TRIAL and "test" not in result:
        result["test"] = _figures(bench, run, models, "test", bench.sweep.test_split)
    result["evaluate_seconds"] = result.get("evaluate_seconds", 0.0) + time.monotonic() - started
    if bench.sweep.search is not None and searched not in (None, result["validation"]):
        result["trial"] = searched  # what the choice was made by, so that it can be made again
    write_result(bench.out, run, result)
    # The moments of the optimiser are several times the model, and a finished run needs them no more.
    shutil.rmtree(run_folder(bench.out, run) / CHECKPOINTS / LAST, ignore_errors=True)


def _seen_enough(bench: Bench, run: Planned) -> bool:
    """Whether the figures of a run are those of its best epoch: a trial's, which are there to choose by."""
    search = bench.sweep.search
    return run.phase == TRIAL and search is not None and search.measure in MEASURES


def _config(bench: Bench, run: Planned) -> TrainConfig:
    place = {"data": str(bench.shared.dataset.folder), "out": str(run_folder(bench.out, run))}
    machine = {"device": bench.device, "graph": bench.graph, "seed": run.seed}
    return TrainConfig(**{**run.settings, **place, **machine})


def _job(bench: Bench, run: Planned) -> Job:
    config = _config(bench, run)
    return Job(config, bench.shared.model(config), run.noise)


def _take_best(model: "RetrievalModel", folder: Path) -> None:
    """Put the weights of the best epoch into the model; those of the last are there already."""
    from safetensors.torch import load_file

    from bcls.models.folder import WEIGHTS

    best = folder / CHECKPOINTS / BEST / WEIGHTS
    if best.is_file():
        model.load_trained_state(load_file(best))


def _trained(bench: Bench, run: Planned) -> "tuple[TrainConfig, RetrievalModel]":
    """The model of a finished run."""
    config = _config(bench, run)
    model = load(str(run_folder(bench.out, run) / CHECKPOINTS / BEST))
    model.to(start_accelerator(config).device)
    return config, bench.shared.lend(model)


def _figures(
    bench: Bench, run: Planned, models: "list[tuple[TrainConfig, RetrievalModel]]", kind: str, split_name: str
) -> dict[str, float]:
    config = models[0][0]
    split = bench.shared.split(split_name, config)
    similarity = _mean([scores_of(model, one, split, split.texts, bench.pool) for one, model in models])
    test = kind == "test"
    more: dict[str, Any] = {"folds": bench.sweep.folds, "eccv": bench.sweep.eccv} if test else {}
    figures, ranks = split_figures(split, similarity, config.labels, bench.shared, device=bench.device, **more)
    _write_ranks(bench.out / RANKS / f"{run.key}-{kind}.npz", ranks, split.image_of_caption)
    search = bench.sweep.search
    parts = PARTS if test else ("choice",) if search is not None and search.measure.startswith("choice_") else ()
    if bench.judgements is not None and parts:
        figures |= people_figures(bench.judgements, partial(_scores_of_photos, bench, models), parts)
    return figures


def _scores_of_photos(
    bench: Bench, models: "list[tuple[TrainConfig, RetrievalModel]]", photos: Any, texts: Any
) -> "NDArray[np.float32]":
    images = bench.shared.dataset.of_images(photos)
    order = {image: row for row, image in enumerate(images.image_ids)}
    matrix = _mean([scores_of(model, config, images, list(texts), bench.pool) for config, model in models])
    return matrix[[order[photo] for photo in photos]]


def _mean(matrices: "list[NDArray[np.float32]]") -> "NDArray[np.float32]":
    total: NDArray[np.float32] = np.mean(matrices, axis=0, dtype=np.float32) if len(matrices) > 1 else matrices[0]
    return total


def _write_ranks(path: Path, ranks: "QueryRanks", owner: "NDArray[np.int64]") -> None:
    """Write the rank of each query and the image of each caption: all that a paired test needs."""
    path.parent.mkdir(exist_ok=True)
    packed = io.BytesIO()
    i2t, t2i, owners = (array.astype(np.uint32) for array in (ranks.i2t, ranks.t2i, owner))
    np.savez_compressed(packed, i2t=i2t, t2i=t2i, owner=owners)
    write_whole(path, packed.getvalue())


def _about(bench: Bench) -> dict[str, Any]:
    """Where a result comes from."""
    world = describe(1)
    kept = ("bcls", "revision", "python", "packages", "gpus", "threads", "started")
    command = " ".join(["bcls", *sys.argv[1:]])
    return {"dataset": bench.shared.dataset.name, "command": command, **{key: world[key] for key in kept}}
