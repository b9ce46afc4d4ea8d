"""One run of a sweep: train, take the best checkpoint of the validation split, compute figures, write them down."""

import io
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bcls._files import write_whole
from bcls.experiments.course import MEASURES, best_look, course
from bcls.experiments.figures import scores_of, split_figures
from bcls.experiments.file import Sweep
from bcls.experiments.people import PARTS, Judgements, people_figures
from bcls.experiments.plan import TRIAL, Planned
from bcls.experiments.results import RANKS, read_result, run_folder, write_result
from bcls.experiments.shared import Shared
from bcls.experiments.train_run import Job, train_runs
from bcls.models import load
from bcls.training import TrainConfig
from bcls.training.environment import describe
from bcls.training.run_folder import BEST, CHECKPOINTS, LAST
from bcls.training.setup import start_accelerator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bcls.evaluation import QueryRanks
    from bcls.models.base import RetrievalModel


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
