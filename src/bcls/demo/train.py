"""One training run of the demo, top to bottom."""

import math
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from bcls.demo.gallery import TestSplit
from bcls.demo.results import Run
from bcls.demo.scenes import CAPTIONS, DemoData
from bcls.demo.settings import DemoSettings
from bcls.demo.towers import Towers
from bcls.evaluation import kendall, recalls
from bcls.losses import from_name

#: The same for every loss; chosen on the validation split.
LEARNING_RATE = 3e-3
#: The validation split is looked at after every so many epochs.
LOOK_EVERY = 2


def train(loss: str, seed: int, data: DemoData, settings: DemoSettings, tell: Callable[[int], None]) -> Run:
    """Train the towers under one loss from one seed and measure them.

    Args:
        loss: Name of the loss; its defaults are the paper's.
        seed: Of weights, batches and the choice of captions.
        data: Pictures, caption vectors and labels.
        settings: Epochs and batch size.
        tell: Called with the number of epochs done.
    """
    started = time.perf_counter()
    torch.manual_seed(seed)
    criterion, model = from_name(loss), Towers(data.vectors.shape[2])
    steps_each = data.training // settings.batch
    steps = settings.epochs * steps_each
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_pace, steps=steps))
    seen: dict[str, list[float]] = {"epochs": [], "train_loss": [], "val_rsum": [], "val_tau_true": []}
    for epoch in range(1, settings.epochs + 1):
        model.train()
        values = []
        # Whole batches only: a short last one would weigh its pairs more than the others.
        for images in torch.randperm(data.training)[: steps_each * settings.batch].view(steps_each, -1):
            captions = data.vectors[images, torch.randint(CAPTIONS, (len(images),))]
            value = criterion(model(data.pictures[images], captions), _labels(data, images, captions), image_ids=images)
            optimizer.zero_grad()
            torch.autograd.backward(value)
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            schedule.step()
            values.append(value.item())
        if epoch % LOOK_EVERY == 0 or epoch == settings.epochs:
            figures = measure(_scores(model, data, data.training, data.validation), data.validation)
            for key, number in zip(
                seen, (epoch, sum(values) / len(values), figures["rsum"], figures["tau_true"]), strict=True
            ):
                seen[key].append(number)
        tell(epoch)
    similarity = _scores(model, data, len(data.pictures) - len(data.test.pixels), data.test)
    return Run(
        loss=loss,
        seed=seed,
        epochs=[int(epoch) for epoch in seen.pop("epochs")],
        **seen,
        test=measure(similarity, data.test),
        seconds=time.perf_counter() - started,
        similarity=similarity.numpy(),
    )


def _pace(step: int, steps: int) -> float:
    """Share of the learning rate: up over the first tenth of the steps, then down along a cosine."""
    warm = steps // 10 + 1
    if step < warm:
        return (step + 1) / warm
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / max(1, steps - warm))


def measure(similarity: Tensor, split: TestSplit) -> dict[str, float]:
    """Recalls against the pairs, and Kendall's tau (mean of both directions) against both kinds of relevance."""
    figures = recalls(similarity, split.image_of_caption)
    for name, labels in (("pseudo", split.pseudo), ("true", split.true)):
        taus = kendall(similarity, labels)
        figures[f"tau_{name}"] = (taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2
    return figures


def _labels(data: DemoData, images: Tensor, captions: Tensor) -> Tensor:
    """Pseudo labels of a batch: the best cosine of a caption with any caption of the image."""
    cosines = torch.einsum("ikd,jd->ijk", data.vectors[images], captions)
    return cosines.amax(2).clamp(-1, 1).fill_diagonal_(1)


@torch.no_grad()
def _scores(model: Towers, data: DemoData, start: int, split: TestSplit) -> Tensor:
    model.eval()
    images = slice(start, start + len(split.pixels))
    scores: Tensor = model(data.pictures[images], data.vectors[images].flatten(0, 1))
    return scores
