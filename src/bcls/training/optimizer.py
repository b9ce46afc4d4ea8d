"""Optimiser with a group for each named part of the model."""

from typing import Any

import torch
from torch import nn

from bcls._checks import check_choice, check_number
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
