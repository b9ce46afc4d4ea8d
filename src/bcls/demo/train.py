"""One run of the demo: the library's own training loop, then a look at the model of every epoch."""

import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bcls._padded import Padded
from bcls.demo.gallery import Floats, JudgedSplit
from bcls.demo.results import Run
from bcls.demo.scenes import ENCODER, PIXELS, DemoData
from bcls.demo.settings import DemoSettings
from bcls.demo.towers import ScenesConfig, ScenesModel
from bcls.evaluation import kendall, recalls
from bcls.models.folder import WEIGHTS
from bcls.training import TrainConfig
from bcls.training import train as train_run
from bcls.training.journal import read_metrics
from bcls.training.run_folder import BEST, CHECKPOINTS, EPOCH


def train(loss: str, seed: int, data: DemoData, settings: DemoSettings, folder: Path) -> Run:
    """Train the towers under one loss from one seed and measure them.

    The test figures are those of the model that ``bcls.models.load(folder)`` gives: the one with the highest RSUM on
    the validation split.

    Args:
        loss: Name of the loss; its defaults are the paper's.
        seed: Of weights, batches and dropout.
        data: Pictures, captions and labels.
        settings: Epochs and batch size.
        folder: The run's folder.
    """
    started = time.perf_counter()
    torch.manual_seed(seed)
    model = ScenesModel(ScenesConfig(), data.reader)
    result = train_run(_config(loss, seed, data, settings, folder), model=model, dataset=data.dataset)
    epochs = list(range(1, result.epochs + 1))
    # No loss and no choice has seen the true relevance, so it is looked at afterwards.
    looks = [_scores(model, folder, EPOCH.format(epoch), data, data.validation) for epoch in epochs]
    seen = [measure(look, data.validation) for look in looks]
    similarity = _scores(model, folder, BEST, data, data.test)
    return Run(
        loss=loss,
        seed=seed,
        epochs=epochs,
        train_loss=_losses(read_metrics(folder), result.epochs),
        val_rsum=[look["rsum"] for look in result.history],
        val_tau_true=[look["tau_true"] for look in seen],
        test=measure(similarity, data.test),
        seconds=time.perf_counter() - started,
        similarity=similarity,
    )


def _config(loss: str, seed: int, data: DemoData, settings: DemoSettings, folder: Path) -> TrainConfig:
    """The same for every loss but for its name; the learning rate was chosen on the validation split."""
    return TrainConfig(
        data=str(data.dataset.folder),
        out=str(folder),
        model={"name": ScenesConfig.name},
        loss={"name": loss},
        features=PIXELS,
        labels=ENCODER,
        val_images=None,
        epochs=settings.epochs,
        batch=settings.batch,
        optimizer="adamw",
        lr=3e-3,
        weight_decay=1e-3,
        schedule="cosine",
        warmup=settings.epochs / 10,
        keep_epochs=True,
        device="cpu",
        seed=seed,
    )


def measure(similarity: Floats, split: JudgedSplit) -> dict[str, float]:
    """Recalls against the pairs, and Kendall's tau (mean of both directions) against both kinds of relevance."""
    figures = recalls(similarity, split.image_of_caption)
    for name, labels in (("pseudo", split.pseudo), ("true", split.true)):
        taus = kendall(similarity, labels)
        figures[f"tau_{name}"] = (taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2
    return figures


def _scores(model: ScenesModel, folder: Path, checkpoint: str, data: DemoData, split: JudgedSplit) -> Floats:
    """Scores of a split by the model as a checkpoint has it."""
    model.load_trained_state(load_file(folder / CHECKPOINTS / checkpoint / WEIGHTS))
    pixels = torch.from_numpy(split.pixels).permute(0, 3, 1, 2)
    scores: Floats = model.similarity(pixels, Padded(data.reader(split.texts))).numpy()
    return scores


def _losses(lines: list[dict[str, Any]], epochs: int) -> list[float]:
    """Mean training loss of each epoch, from the lines of ``metrics.jsonl``.

    Each line has the mean over the steps since the line before.

    Example:
        >>> steps = ((1, 2, 4.0), (1, 3, 1.0), (2, 4, 0.5))
        >>> _losses([{"kind": "step", "epoch": e, "step": s, "loss": value} for e, s, value in steps], 2)
        [3.0, 0.5]
    """
    sums, counts, before = [0.0] * epochs, [0] * epochs, 0
    for line in lines:
        if line["kind"] == "step":
            count, before = line["step"] - before, line["step"]
            sums[line["epoch"] - 1] += line["loss"] * count
            counts[line["epoch"] - 1] += count
    return [total / count for total, count in zip(sums, counts, strict=True)]
