"""The entry point: take a run's folder, begin or go on, and write what people read at the end."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcls._core.config import read_yaml
from bcls._core.errors import fail
from bcls._core.files import recover
from bcls.training.config import TrainConfig, check_config, differences, write_yaml
from bcls.training.run_folder import BEST, CHECKPOINTS, CONFIG, ENVIRONMENT, LAST, METRICS, REPORT, Result, locked

if TYPE_CHECKING:
    from bcls.data.dataset import Dataset
    from bcls.models.base import RetrievalModel
    from bcls.training.batch_labels import NoisyLabels
    from bcls.training.setup import Run


def train(
    config: TrainConfig,
    *,
    model: "RetrievalModel | None" = None,
    dataset: "Dataset | None" = None,
    label_noise: float = 0.0,
    report: bool = True,
    save_seconds: float = 0.0,
) -> Result:
    """Train a model; the whole of ``bcls train``.

    Args:
        config: Settings. ``config.out`` is the run's folder, new or empty unless ``config.resume``.
        model: A model of your own in place of ``config.model``; its weights are trained in place.
        dataset: An opened dataset in place of ``config.data``.
        label_noise: Standard deviation of noise in the training labels, for experiments with wrong labels; see
            :class:`bcls.training.batch_labels.NoisyLabels`.
        report: Write ``report.html`` at the end.
        save_seconds: Write a checkpoint at the end of an epoch only if the last one is at least this old; 0 for a
            checkpoint after each epoch.

    Returns:
        The figures, and where everything is.

    Raises:
        ValueError: Settings, data, model or checkpoint are wrong or do not fit together; or training diverged.
        KeyboardInterrupt: It was interrupted; a checkpoint was written, and ``resume`` goes on from it.
    """
    check_config(config)
    if not config.out:
        fail("out", "a folder for the run", "none", "give it with --out DIR")
    folder = Path(config.out)
    _check_free(folder, resume=config.resume)

    from contextlib import ExitStack

    from bcls.training.console import tell
    from bcls.training.loop import run_epochs
    from bcls.training.setup import set_up, start_accelerator, unvisited

    with ExitStack() as stack:
        main = start_accelerator(config).is_main_process
        if main:
            stack.enter_context(locked(folder))
        run = set_up(config, model, dataset)
        stack.callback(run.pool.shutdown)
        if label_noise:
            run = replace(run, labels=_noisy_labels(run, label_noise))
        if main:
            (folder / CHECKPOINTS).mkdir(exist_ok=True)
            for name in (LAST, BEST):
                recover(folder / CHECKPOINTS / name)
        run.accelerator.wait_for_everyone()
        state = _last_state(folder, run) if config.resume else None
        if main:
            if state is None:
                write_yaml(folder / CONFIG, run.config)
            _describe(folder, run)
            missed = unvisited(run)
            if missed:
                tell(f"note: {missed} captions fit into no batch and are left out")
        try:
            at = run_epochs(run, folder, state, save_seconds)
        finally:
            run.accelerator.unwrap_model(run.parallel, keep_fp32_wrapper=False)
        if main and report:
            from bcls.training.page import write_report

            write_report(folder)
        run.accelerator.wait_for_everyone()
    return _result(folder, at.epoch, at.best_epoch, at.seconds)


def _noisy_labels(run: "Run", noise: float) -> "NoisyLabels":
    import numpy as np

    from bcls.labels.cache import cached_embeddings
    from bcls.training.batch_labels import NoisyLabels

    config = run.config
    if config.labels == "none":
        fail("noise", "a run with labels", "labels: none", "name a text encoder, such as minilm")
    vectors, owner = np.asarray(cached_embeddings(run.train, config.labels)), run.train.image_of_caption
    return NoisyLabels(vectors, owner, config.aggregate, run.accelerator.device, noise=noise)


def _check_free(folder: Path, *, resume: bool) -> None:
    # An empty folder of checkpoints is what is left of a run that was killed before it wrote down its settings.
    begun = (folder / CONFIG, folder / METRICS, *(folder / CHECKPOINTS).glob("*"))
    if not resume and any(path.exists() for path in begun):
        fail(
            "out", "a new or empty folder", f"{folder}, which holds a run", "continue it with --resume, or use another"
        )
    if resume and not (folder / CONFIG).exists():
        fail("resume", f"a run in {folder}", "none", "leave --resume out to start one")


def _last_state(folder: Path, run: "Run") -> dict[str, Any] | None:
    """What the last checkpoint says, after a look at whether it fits; ``None`` where the run wrote none yet."""
    from bcls.training.checkpoint import read_state

    last = folder / CHECKPOINTS / LAST
    before = read_yaml(folder / CONFIG)
    if not isinstance(before, dict):
        fail(str(folder / CONFIG), "the settings of a run", repr(before), "put the file back, or start a new run")
    changed = differences(before, run.config.as_dict())
    if changed:
        fail("resume", "the settings of the run", "; ".join(changed), "set them back, or start a new run")
    if not last.exists():
        return None
    state = read_state(last)
    now, then = run.fingerprint, state["data"]
    for key, what in (("images", "training images"), ("captions", "training captions"), ("sha256", "captions' hash")):
        if now[key] != then.get(key):
            fail("data", f"{then.get(key)} ({what}) as when the run began", now[key], "use the dataset of the run")
    return state


def _describe(folder: Path, run: "Run") -> None:
    from bcls.training.run_folder import add_environment

    add_environment(folder / ENVIRONMENT, run.accelerator.num_processes)
    (folder / REPORT).unlink(missing_ok=True)  # it would show an earlier end


def _result(folder: Path, epochs: int, best_epoch: int, seconds: float) -> Result:
    from bcls.training.metrics_log import read_metrics

    looks = [line for line in read_metrics(folder) if line["kind"] == "validation"]
    history = [{key: value for key, value in look.items() if isinstance(value, float)} for look in looks]
    best = history[best_epoch - 1] if best_epoch else {}
    return Result(folder, epochs, best, best_epoch, history, seconds)
