"""The learning rate, as a pure function of the step: nothing to store, nothing to restore."""

import math

from bcls.training.config import TrainConfig


def rate_at(epoch: int, step: int, steps: int, config: TrainConfig) -> float:
    """Factor on the learning rate at a step.

    It rises linearly over ``config.warmup`` epochs; then it is multiplied by ``drop`` after each epoch of ``drops``
    (``"step"``), falls to 0 along half a cosine (``"cosine"``), or stays (``"constant"``). Time is counted in epochs:
    two epochs may differ by a step, see :func:`bcls.training.plan.plan_epoch`.

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
