"""Checkpoints: the files of the model, and beside them everything that a run needs to resume bit for bit. No pickle.

``model.safetensors`` and ``config.json`` are those of :meth:`bcls.models.base.RetrievalModel.save_pretrained`, so a
checkpoint loads as a model. ``training.safetensors`` holds the optimizer's tensors, the loss's own parameters, and the
live weights if the model's files hold their moving average; ``training.json`` the position, the best metric, and the
length of ``metrics.jsonl``. Random numbers need no state: they are seeded at each step from the seed and the position.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bcls._core.errors import fail
from bcls._core.files import write_whole
from bcls.models.base import RetrievalModel
from bcls.models.config import registered_name
from bcls.models.folder import WEIGHTS, read_tensors, write_files, write_tensors

TENSORS, STATE = "training.safetensors", "training.json"
_VERSION = 1
_DAMAGED = "the file is damaged: use another checkpoint"


@dataclass
class Progress:
    """Position and state of a run, in plain values.

    Attributes:
        epoch: Epochs completed.
        step: Optimizer steps completed in the current epoch.
        done: Optimizer steps completed in all epochs.
        metrics_bytes: Length of metrics.jsonl.
        seconds: Training time, over all parts of the run.
        best: The best value of the metric that selects the best epoch.
        best_epoch: The epoch of that value, from 1.
        stale: Epochs since then.
        flat: Steps in a row with all scores equal.
        pending: Values of steps that are not in metrics.jsonl yet.
        finished: Whether the run is complete.
    """

    epoch: int = 0
    step: int = 0
    done: int = 0
    metrics_bytes: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_epoch: int = 0
    stale: int = 0
    flat: int = 0
    pending: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    finished: bool = False


@dataclass
class Learner:
    """Everything with weights or state that training changes."""

    model: RetrievalModel
    loss: torch.nn.Module
    optimizer: torch.optim.Optimizer
    average: "MovingAverage | None" = None
    scaler: Any = None

    @contextmanager
    def evaluated_weights(self) -> Iterator[RetrievalModel]:
        """The model with the weights that are evaluated and saved: the moving average, if there is one."""
        with nullcontext() if self.average is None else swapped_weights(self.model, self.average.state):
            yield self.model


class MovingAverage:
    r"""Exponential moving average of a model's state, :math:`a \leftarrow d\,a + (1 - d)\,w` after each step.

    Integers (counters of batch norm) are copied. The average starts at the weights themselves.

    Args:
        model: The model.
        decay: :math:`d`.
    """

    def __init__(self, model: RetrievalModel, decay: float) -> None:
        self.decay = decay
        self.state = copy_weights(model)

    @torch.no_grad()
    def update(self, model: RetrievalModel) -> None:
        """Add the weights after a step."""
        now = model.trained_state()
        names = [name for name, value in self.state.items() if value.is_floating_point()]
        kept, added = [self.state[name] for name in names], [now[name].detach() for name in names]
        torch._foreach_lerp_(kept, added, 1 - self.decay)
        for name in self.state.keys() - set(names):
            self.state[name].copy_(now[name])


def decay_for(decay: float, steps: int) -> float:
    """The decay of a run: at most 1 - 3 / steps, which leaves 5 % of the initial weights in the average at the end.

    Example:
        >>> decay_for(0.999, 10_000), decay_for(0.999, 300)
        (0.999, 0.99)
    """
    return min(decay, 1 - 3 / max(steps, 3))


def copy_weights(model: RetrievalModel) -> dict[str, Tensor]:
    """A copy of the trained weights."""
    return {name: value.detach().clone() for name, value in model.trained_state().items()}


@contextmanager
def swapped_weights(model: RetrievalModel, weights: dict[str, Tensor]) -> Iterator[None]:
    """The model with other weights; its own are put back afterwards, also after an error."""
    own = copy_weights(model)
    model.load_trained_state(weights)
    try:
        yield
    finally:
        model.load_trained_state(own)


def write_checkpoint(
    folder: Path, learner: Learner, progress: Progress, settings: dict[str, Any], data: dict[str, Any]
) -> None:
    """Write a checkpoint into an empty folder; all of it is on the disk afterwards.

    Args:
        folder: The folder.
        learner: Model, loss and optimizer.
        progress: Position of the run.
        settings: Settings of the run, to refuse a continuation with others.
        data: Identity of the dataset: name, numbers of images and captions, hash.
    """
    tensors = {
        f"optimizer/{number}/{key}": torch.as_tensor(value)
        for number, parameter in enumerate(_parameters(learner.optimizer))
        for key, value in learner.optimizer.state.get(parameter, {}).items()
    }
    tensors |= {f"loss/{name}": value for name, value in learner.loss.state_dict().items()}
    if learner.average is not None:
        tensors |= {f"weights/{name}": value for name, value in learner.model.trained_state().items()}
    write_tensors(folder / TENSORS, tensors)
    with learner.evaluated_weights() as model:
        write_model(model, folder)
    state = {
        "version": _VERSION,
        "progress": asdict(progress),
        "scaler": None if learner.scaler is None else learner.scaler.state_dict(),
        "settings": settings,
        "data": data,
    }
    write_whole(folder / STATE, json.dumps(state, indent=1) + "\n")


def write_model(model: RetrievalModel, folder: Path) -> None:
    """Write a model's files; of one that is not in the registry only weights and settings, for its own code to read."""
    if registered_name(model.config):
        write_files(model, folder)
        return
    write_tensors(folder / WEIGHTS, model.trained_state())
    write_whole(folder / "config.json", json.dumps({"class": type(model).__qualname__, **model.as_dict()}) + "\n")


def read_state(folder: Path) -> dict[str, Any]:
    """Read ``training.json`` of a checkpoint.

    Raises:
        ValueError: It is missing, damaged, or of another version.
    """
    path = folder / STATE
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = state["version"]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError) as error:
        fail(str(path), "a readable training state", f"an error ({str(error)[:200]})", "start a new run")
    if version != _VERSION:
        fail(str(path), f"version {_VERSION}", f"version {version}", "use the release of bcls that wrote it")
    for key in ("progress", "settings", "data"):
        if not isinstance(state.get(key), dict):
            fail(str(path), f"a mapping `{key}`", repr(state.get(key)), _DAMAGED)
    return state


def restore(folder: Path, learner: Learner, state: dict[str, Any]) -> Progress:
    """Restore model, loss and optimizer from a checkpoint.

    Args:
        folder: The checkpoint.
        learner: Changed in place.
        state: From :func:`read_state`.

    Returns:
        The position of the run.

    Raises:
        ValueError: A file is incomplete, or the checkpoint is of another model; the message names the difference.
    """
    tensors, weights = read_tensors(folder / TENSORS), read_tensors(folder / WEIGHTS)
    if learner.average is None:
        learner.model.load_trained_state(weights)
    else:
        learner.average.state = {name: value.to(learner.model.device) for name, value in weights.items()}
        learner.model.load_trained_state(_below(tensors, "weights/"))
    learner.loss.load_state_dict(_below(tensors, "loss/"))
    _restore_optimizer(learner.optimizer, _below(tensors, "optimizer/"), folder / TENSORS)
    if learner.scaler is not None and state["scaler"]:
        learner.scaler.load_state_dict(state["scaler"])
    try:
        pending = [(step, row) for step, row in state["progress"]["pending"]]
        return Progress(**{**state["progress"], "pending": pending})
    except (KeyError, TypeError, ValueError) as error:
        fail(str(folder / STATE), "the epoch and step of the run", f"an error ({str(error)[:200]})", _DAMAGED)


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], path: Path) -> None:
    parameters = list(_parameters(optimizer))
    optimizer.state.clear()
    for name, value in tensors.items():
        number, _, key = name.partition("/")
        if not number.isdecimal() or len(number) > 9 or int(number) >= len(parameters):
            fail(str(path), f"{len(parameters)} parameters", f"number {number}", "the checkpoint is of another model")
        parameter = parameters[int(number)]
        if value.ndim:
            if value.shape != parameter.shape:
                got = f"{tuple(value.shape)} for number {number}"
                fail(str(path), f"shape {tuple(parameter.shape)}", got, "the checkpoint is of another model")
            # In the parameter's own memory format: filters of convolutions are channels last, and a fused step needs
            # one format for everything that it reads.
            optimizer.state[parameter][key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        else:
            # Adam counts its steps on the CPU unless it is fused.
            device = parameter.device if optimizer.defaults.get("fused") else torch.device("cpu")
            optimizer.state[parameter][key] = value.to(device, copy=True)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
