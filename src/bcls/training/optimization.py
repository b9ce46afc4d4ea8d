"""Optimiser with a group for each named part of the model.

The learning rate, as a pure function of the step: nothing to store, nothing to restore.

The loss of a run, from its settings.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from bcls._core.errors import check_choice, check_number, fail
from bcls.losses import LOSSES, RetrievalLoss, TripletLoss, from_name
from bcls.training.config import TrainConfig

#: Name of the group of what the loss learns, its temperature.
LOSS_GROUP = "loss"


def make_optimizer(
    groups: dict[str, list[nn.Parameter]], config: TrainConfig, device: torch.device
) -> torch.optim.Optimizer:
    """Adam or AdamW over named groups of parameters.

    A group's learning rate is ``lr`` times its factor in ``config.rates``. Weight decay leaves vectors and numbers
    alone (biases, norms, a temperature). On CUDA the fused form is used.

    Args:
        groups: Parameters by the name of their group.
        config: Settings of the run.
        device: Where the parameters are.

    Raises:
        ValueError: ``rates`` names a group that is not there; the message names those that are.
    """
    for name, factor in config.rates.items():
        check_choice("rates", name, groups)
        check_number(f"rates.{name}", factor, "1 leaves the learning rate as it is; freeze a part in `model`", above=0)
    parts: list[dict[str, Any]] = []
    for name, parameters in groups.items():
        rate = config.lr * config.rates.get(name, 1.0)
        for matrices, decay in ((True, config.weight_decay), (False, 0.0)):
            chosen = [one for one in parameters if (one.ndim > 1) == matrices]
            if chosen:
                parts.append({"params": chosen, "lr": rate, "full_lr": rate, "weight_decay": decay, "name": name})
    make = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return make(parts, lr=config.lr, fused=device.type == "cuda")


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's learning rate to a factor of its own full one."""
    for group in optimizer.param_groups:
        rate = group["full_lr"] * factor
        if isinstance(group["lr"], torch.Tensor):  # read by a recorded step, where it lies
            if group.get("rate_there") != rate:
                group["lr"].fill_(rate)
                group["rate_there"] = rate
        else:
            group["lr"] = rate


def rate_at(epoch: int, step: int, steps: int, config: TrainConfig) -> float:
    """Factor on the learning rate at a step.

    It rises linearly over ``config.warmup`` epochs; then it is multiplied by ``drop`` after each epoch of ``drops``
    (``"step"``), falls to 0 along half a cosine (``"cosine"``), or stays (``"constant"``). Time is counted in epochs:
    two epochs may differ by a step, see :func:`bcls.training.sampler.plan_epoch`.

    Args:
        epoch: Epochs done.
        step: Steps of the optimiser done in this one.
        steps: Steps that it has.
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


#: What a loss can learn: argument, value to start from, and the lowest it may become.
LEARNABLE: dict[str, dict[str, tuple[float, float]]] = {
    "infonce": {"temperature": (0.05, 0.01)},
    "sigmoid": {"scale": (10.0, 0.01), "bias": (-10.0, -float("inf"))},
}


def make_loss(
    settings: Mapping[str, Any], initial_temperature: float | None = None, initial_bias: float | None = None
) -> RetrievalLoss:
    """Build the loss that ``loss:`` in the settings describes.

    Args:
        settings: ``name``, arguments of :func:`bcls.losses.from_name` (of a sum as ``infonce.temperature`` or as a
            mapping below ``infonce``), and ``learn_temperature`` to learn the temperature of ``infonce`` or scale and
            bias of ``sigmoid`` along with the weights.
        initial_temperature: Where learning the temperature of ``infonce`` starts unless it is given, a model's own.
        initial_bias: The model's own bias, where it has learnt with a sigmoid loss: scale and bias of ``sigmoid`` then
            start from the model's two, unless they are given.

    Raises:
        ValueError: A name or an argument is unknown; the message names the nearest one.

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
    for part in parts:
        check_choice("loss.name", part, LOSSES)
    learn = settings.get("learn_temperature", False)
    if not isinstance(learn, bool):
        fail("loss.learn_temperature", "true or false", repr(learn), "write it without quotes")
    if learn:
        able = [part for part in parts if part in LEARNABLE]
        if not able:
            fail("loss.learn_temperature", f"a loss among {', '.join(LEARNABLE)}", name, "leave it out")
        for part in able:
            own = _starts(initial_temperature, initial_bias)
            for argument, (usual, _) in LEARNABLE[part].items():
                start = own.get(argument, usual)
                key = f"{part}.{argument}" if len(parts) > 1 else argument
                arguments[key] = nn.Parameter(torch.tensor(float(arguments.get(key, start))))
    for key in arguments:
        if key.startswith("learn"):
            check_choice("loss", key, ["learn_temperature"])
    return from_name(name, **arguments)


def _starts(temperature: float | None, bias: float | None) -> dict[str, float]:
    """Where a model's own temperature and bias put what a loss learns."""
    if temperature is None:
        return {}
    starts = {"temperature": temperature}
    # A scale is of use with its bias alone: they say together from which cosine on a pair counts as one.
    return starts if bias is None else {**starts, "scale": 1 / temperature, "bias": bias}


def all_negatives(settings: Mapping[str, Any]) -> RetrievalLoss:
    """The loss of the first epochs where ``warm_negatives`` asks for it, with the margin and reduction of the loss.

    Example:
        >>> all_negatives({"name": "triplet-sn+kendall", "triplet-sn": {"margin": 0.5}}).margin
        0.5
    """
    # Of a sum, those of its first part that has one.
    known = {key.rpartition(".")[2]: value for key, value in reversed(_flat(settings).items())}
    arguments = {key: known[key] for key in ("margin", "reduction") if key in known}
    return TripletLoss(**arguments)


@torch.no_grad()
def hold_in_range(loss: nn.Module) -> None:
    """Keep learnt temperatures where the loss is defined; at 0.01 or above, as CLIP does."""
    for name, parameter in loss.named_parameters():
        argument = name.rsplit(".", 1)[-1]
        for learnable in LEARNABLE.values():
            if argument in learnable:
                parameter.clamp_(min=learnable[argument][1])


def numbers(value: Any) -> Any:
    """Numbers that YAML takes for words, such as 5e-4, as numbers; in mappings and lists too.

    Example:
        >>> numbers({"lr": "5e-4", "name": "vsepp", "more": ["1e3"]})
        {'lr': 0.0005, 'name': 'vsepp', 'more': [1000.0]}
    """
    if isinstance(value, Mapping):
        return {key: numbers(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [numbers(one) for one in value]
    if isinstance(value, str) and value[:1] in "+-.0123456789" and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
