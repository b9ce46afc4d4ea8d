"""Optimization: the loss from its settings, the optimizer with its parameter groups, the learning rate schedule.

The learning rate is a pure function of the step, so a checkpoint need not store it.
"""

import math
from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import nn

from bcls._core.errors import check_choice, check_number, fail, prefix_errors
from bcls.losses import LOSSES, InfoNCELoss, RetrievalLoss, StreamingBCLSLoss, TripletLoss, from_name
from bcls.training.config import TrainConfig

#: Parameter group of the parameters of the loss, such as its temperature.
LOSS_GROUP = "loss"


def make_optimizer(
    groups: dict[str, list[nn.Parameter]], config: TrainConfig, device: torch.device
) -> torch.optim.Optimizer:
    """Adam or AdamW over named groups of parameters.

    A group's learning rate is ``lr`` times its factor in ``config.rates``. Weight decay is not applied to vectors and
    scalars (biases, norms, a temperature). On CUDA the optimizer is fused.

    Args:
        groups: Parameters by the name of their group.
        config: Settings of the run.
        device: Device of the parameters.

    Raises:
        ValueError: ``rates`` names an unknown group; the message lists the groups.
    """
    for name, factor in config.rates.items():
        check_choice(f"rates.{name}", name, groups)
        check_number(f"rates.{name}", factor, "1 does not change the learning rate; freeze a part in `model`", above=0)
    parts: list[dict[str, Any]] = []
    for name, parameters in groups.items():
        rate = config.lr * config.rates.get(name, 1.0)
        for matrices, decay in ((True, config.weight_decay), (False, 0.0)):
            chosen = [one for one in parameters if (one.ndim > 1) == matrices]
            if chosen:
                parts.append({"params": chosen, "lr": rate, "full_lr": rate, "weight_decay": decay, "name": name})
    make = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return make(parts, lr=config.lr, fused=device.type == "cuda")


def reset_state(optimizer: torch.optim.Optimizer) -> None:
    """Set moments and step counts to zero, as in a new optimizer; in place, since a recorded step reads them."""
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's learning rate to a factor of its full learning rate."""
    for group in optimizer.param_groups:
        rate = group["full_lr"] * factor
        if isinstance(group["lr"], torch.Tensor):  # read by a recorded step, in place
            if group.get("written_lr") != rate:
                group["lr"].fill_(rate)
                group["written_lr"] = rate
        else:
            group["lr"] = rate


def rate_at(epoch: int, step: int, steps: int, config: TrainConfig) -> float:
    """Factor on the learning rate at a step.

    It rises linearly over ``config.warmup`` epochs; then it is multiplied by ``drop`` after each epoch of ``drops``
    (``"step"``), falls to 0 along half a cosine (``"cosine"``), or is constant (``"constant"``). Time is counted in
    epochs, since two epochs may differ by a step, see :func:`bcls.training.sampler.plan_epoch`. A run that is extended
    to more epochs follows the schedule of the new number: a cosine rises again to the value of the longer cosine.

    Args:
        epoch: Epochs completed.
        step: Optimizer steps completed in the current epoch.
        steps: Optimizer steps of the current epoch.
        config: Settings of the run.

    Example:
        >>> config = TrainConfig(epochs=20, drops=[10], warmup=1.0)
        >>> [round(rate_at(epoch, step, 100, config), 6) for epoch, step in ((0, 0), (0, 49), (1, 0), (9, 99), (10, 0))]
        [0.01, 0.5, 1.0, 1.0, 0.1]
    """
    done = epoch + step / steps
    if done < config.warmup:
        return min(1.0, (done + 1 / steps) / config.warmup)
    if config.schedule == "step":
        return float(config.drop ** sum(epoch >= one for one in config.drops))
    if config.schedule == "cosine":
        left = max(1 / steps, config.epochs - config.warmup)
        return 0.5 + 0.5 * math.cos(math.pi * (done - config.warmup) / left)
    return 1.0


def make_loss(
    settings: Mapping[str, Any], initial_temperature: float | None = None, initial_bias: float | None = None
) -> RetrievalLoss:
    """Build the loss that ``loss:`` in the settings describes.

    Args:
        settings: ``name``, arguments of :func:`bcls.losses.from_name` (of a sum as ``infonce.temperature`` or as a
            mapping below ``infonce``), and ``learn_temperature`` to learn the temperature (of ``sigmoid`` the scale and
            bias) along with the weights; in a sum, of every part that has one.
        initial_temperature: Initial value of a learned temperature of ``infonce`` that is not given: the model's own.
        initial_bias: The model's own bias, if it was trained with a sigmoid loss: scale and bias of ``sigmoid`` then
            start from the model's, unless they are given.

    Raises:
        ValueError: A name, an argument or its value is wrong; the message has the full key, such as
            ``loss.temperature``.

    Example:
        >>> loss = make_loss({"name": "infonce+kendall-sw-hs", "infonce": {"temperature": 0.07}})
        >>> loss.parts[0].temperature
        0.07
        >>> [name for name, _ in make_loss({"name": "infonce", "learn_temperature": True}).named_parameters()]
        ['temperature']
    """
    arguments = _flat({key: value for key, value in settings.items() if key not in {"name", "learn_temperature"}})
    name = str(settings.get("name"))
    parts = [part.strip() for part in name.split("+")]
    learn = settings.get("learn_temperature", False)
    if not isinstance(learn, bool):
        fail("loss.learn_temperature", "true or false", repr(learn), "write it without quotes")
    if learn:
        able = [one for one, loss in LOSSES.items() if "learn_temperature" in signature(loss).parameters]
        if not set(parts) & set(able):
            fail("loss.learn_temperature", f"a loss with a temperature ({', '.join(able)})", name, "leave it out")
        initial: dict[str, dict[str, float]] = {}
        if initial_temperature is not None:
            initial["infonce"] = {"temperature": max(initial_temperature, InfoNCELoss.learnable["temperature"][0])}
            if initial_bias is not None:
                # A scale is useful only with its bias: together they decide from which cosine on a pair is a match.
                initial["sigmoid"] = {"scale": 1 / initial_temperature, "bias": initial_bias}
        for part in set(parts) & set(able):
            prefix = f"{part}." if len(parts) > 1 else ""
            own = {f"{prefix}{argument}": value for argument, value in initial.get(part, {}).items()}
            arguments = own | arguments | {f"{prefix}learn_temperature": True}
    with prefix_errors("loss."):
        return from_name(name, **arguments)


def make_streaming_loss(settings: Mapping[str, Any], group: Any = None) -> StreamingBCLSLoss:
    """The loss ``bcls`` of the settings, computed from embeddings.

    Args:
        settings: As for :func:`make_loss`, which has checked them.
        group: Processes that share the batch; ``None`` for one process.

    Raises:
        ValueError: It is another loss, or it has an argument that cannot be computed from embeddings.

    Example:
        >>> make_streaming_loss({"name": "bcls", "weight": 2.0}).weight
        2.0
    """
    if settings.get("name") != "bcls":
        fail("streaming", "the loss 'bcls'", repr(settings.get("name")), "leave --streaming out")
    plain = {key.removeprefix("bcls."): value for key, value in _flat(settings).items()}
    arguments = {key: value for key, value in plain.items() if key not in {"name", "learn_temperature"}}
    with prefix_errors("loss."):
        return StreamingBCLSLoss(**arguments, group=group)


def all_negatives(settings: Mapping[str, Any]) -> RetrievalLoss:
    """The loss of the first ``warm_negatives`` epochs, with the margin and reduction of the run's loss.

    Example:
        >>> all_negatives({"name": "triplet-sn+kendall", "triplet-sn": {"margin": 0.5}}).margin
        0.5
    """
    # In a sum, those of its first part that has one.
    known = {key.rpartition(".")[2]: value for key, value in reversed(_flat(settings).items())}
    return TripletLoss(**{key: known[key] for key in ("margin", "reduction") if key in known})


@torch.no_grad()
def clamp_learned(loss: nn.Module) -> None:
    """Clamp learned temperatures to the ranges of their losses."""
    for part in loss.modules():
        for argument, bounds in getattr(part, "learnable", {}).items():
            if isinstance(value := getattr(part, argument), nn.Parameter):
                value.clamp_(*bounds)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
