"""One step of the optimiser, ordinary or recorded, and what it is computed from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcls.losses import RetrievalLoss
from bcls.models.padded import Padded
from bcls.training.cuda_graph import RecordedStep, widened
from bcls.training.distributed import average_gradients, gather_codes
from bcls.training.loader import Batch, Numbered, labelled
from bcls.training.optimization import hold_in_range
from bcls.training.sampler import Numbers, sizes_of_ranks
from bcls.training.setup import Run

#: Batches of one step: :class:`Batch`, or :class:`Numbered` where a recording looks them up on the device.
Parts = Sequence[Any]
Step = Callable[[Parts], dict[str, Tensor]]


def parts_of(run: Run, plan: Sequence[Sequence[Numbers]], epoch: int) -> Iterator[Parts]:
    """What each step of a plan is computed from."""
    flat = [batch for step in plan for batch in step]
    if run.lookup is not None:
        yield from ([batch] for batch in run.lookup.batches(flat, epoch))
        return
    batches = run.feed.batches(flat, epoch)
    for step in plan:
        yield [labelled(next(batches), run.labels, run.train.image_of_caption) for _ in step]


def stepper(run: Run, loss: torch.nn.Module) -> Step:
    """What takes a step with a loss: the ordinary one, or recordings of it where ``graph`` asks for them."""
    if not run.config.graph:
        return lambda parts: step_once(run, loss, parts)
    optimizer = run.learner.optimizer
    if run.lookup is not None:
        opens = run.lookup.open
        looked_up = RecordedStep[Numbered](lambda batch: step_once(run, loss, [opens(batch)]), optimizer)
        return lambda parts: looked_up(parts[0])
    recorded = RecordedStep[Batch](lambda batch: step_once(run, loss, [batch]), optimizer)
    return lambda parts: recorded(replace(parts[0], texts=widened(parts[0].texts)))


def step_once(run: Run, loss: torch.nn.Module, parts: Sequence[Batch]) -> dict[str, Tensor]:
    """One step of the optimiser, over one batch or several whose gradients are added up.

    Returns:
        The terms of the loss, the spread of the scores and the norm of the gradient, on the device.

    Raises:
        FloatingPointError: The scores are not finite.
        ValueError: The batch does not fit into the memory.
    """
    accelerator, learner = run.accelerator, run.learner
    values: dict[str, Tensor] = {}
    try:
        for number, batch in enumerate(parts):
            waits = number + 1 < len(parts)  # gradients are exchanged once, with the last part
            with accelerator.no_sync(run.parallel) if waits else nullcontext():
                similarity = score_pairs(run, batch)
                terms = _terms(loss, similarity, batch)
                accelerator.backward(torch.stack(list(terms.values())).sum() / len(parts))
            for name, value in (*terms.items(), ("spread", similarity.float().std())):
                values[name] = values.get(name, 0) + value.detach() / len(parts)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"`batch`: expected one that fits into the memory of {accelerator.device}, got {run.config.batch} pairs; "
            "lower --batch, or use --precision bf16 or more processes"
        ) from error
    average_gradients(loss, accelerator.num_processes)
    weights = [one for group in learner.optimizer.param_groups for one in group["params"]]
    limit = float("inf") if run.config.clip is None else run.config.clip
    values["gradient"] = torch.as_tensor(accelerator.clip_grad_norm_(weights, limit))
    run.stepper.step()
    run.stepper.zero_grad()
    hold_in_range(loss)
    if learner.average is not None:
        learner.average.update(learner.model)
    return values


def score_pairs(run: Run, batch: Batch) -> Tensor:
    """Scores of all pairs of the batch of all processes, ``(B, B)`` float32.

    Scores of vectors are computed in float32 also in mixed precision: bf16 has three digits, and they would tie.
    """
    sizes = sizes_of_ranks(batch.pairs, run.accelerator.num_processes)
    with run.accelerator.autocast():
        images, texts = run.parallel(batch.images, batch.texts)
    images, texts = gather_codes(images, sizes), gather_codes(texts, sizes)
    if images.values.ndim == texts.values.ndim == 2:
        return run.model.scores(Padded(images.values.float()), Padded(texts.values.float()))
    with run.accelerator.autocast():
        scores = run.model.scores(images, texts)
    return scores.float()


def _terms(loss: torch.nn.Module, similarity: Tensor, batch: Batch) -> dict[str, Tensor]:
    try:
        if isinstance(loss, RetrievalLoss):
            return loss.terms(similarity, batch.relevance, image_ids=batch.image_ids)
        return {"loss": loss(similarity, batch.relevance, image_ids=batch.image_ids)}
    except ValueError as error:  # losses look at their input, too
        if not similarity.isfinite().all():
            raise FloatingPointError("similarity") from error
        raise


def seed_step(*position: int) -> None:
    """Seed torch from a position: seed, epoch, step, process.

    As ``torch.manual_seed`` does, which asks more devices and takes longer than a small model's step.
    """
    state = np.random.SeedSequence(position).generate_state(1, np.uint64)
    seed = int(state[0]) >> 1
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
