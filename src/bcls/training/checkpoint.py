"""The moving average of the weights.

Checkpoints: the model's own files, beside them what else a run needs to go on bit for bit. No pickle.

``model.safetensors`` and ``config.json`` are those of :meth:`bcls.models.base.RetrievalModel.save_pretrained`, so a
checkpoint loads as a model. ``training.safetensors`` holds the optimiser's tensors, the loss's own parameters, and the
live weights where the model's files hold their moving average; ``training.json`` the position, the best figure, and how
long ``metrics.jsonl`` was. Random numbers need no state: they are seeded at each step from the seed and the position.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bcls._core.errors import fail
from bcls._core.files import write_whole
from bcls.models.base import RetrievalModel
from bcls.models.config import is_registered
from bcls.models.folder import WEIGHTS, write_files


class MovingAverage:
    r"""Exponential moving average of a model's state, :math:`a \leftarrow d\,a + (1 - d)\,w` after each step.

    Whole numbers (counters of batch norm) are copied. The average starts at the weights themselves.

    Args:
        model: The model.
        decay: :math:`d`.
    """

    def __init__(self, model: RetrievalModel, decay: float) -> None:
        self.decay = decay
        self.state = copy_of(model)

    @torch.no_grad()
    def update(self, model: RetrievalModel) -> None:
        """Take in the weights after a step."""
        now = model.trained_state()
        names = [name for name, value in self.state.items() if value.is_floating_point()]
        torch._foreach_lerp_(
            [self.state[name] for name in names], [now[name].detach() for name in names], 1 - self.decay
        )
        for name in self.state.keys() - set(names):
            self.state[name].copy_(now[name])

    @contextmanager
    def in_place(self, model: RetrievalModel) -> Iterator[None]:
        """The model with the average as its weights; its own come back afterwards, whatever happens."""
        own = copy_of(model)
        model.load_trained_state(self.state)
        try:
            yield
        finally:
            model.load_trained_state(own)


def decay_for(decay: float, steps: int) -> float:
    """The decay of a run: at most 1 - 3 / steps, which leaves 5 % of the first weights in the average at the end.

    Example:
        >>> decay_for(0.999, 10_000), decay_for(0.999, 300)
        (0.999, 0.99)
    """
    return min(decay, 1 - 3 / max(steps, 3))


def copy_of(model: RetrievalModel) -> dict[str, Tensor]:
    """The weights, copied."""
    return {name: value.detach().clone() for name, value in model.trained_state().items()}


TENSORS, STATE = "training.safetensors", "training.json"
_VERSION = 1


@dataclass
class Progress:
    """Where a run stands, in plain values."""

    epoch: int = 0
    """Epoch, from 0."""
    step: int = 0
    """Steps of the optimiser done in that epoch."""
    done: int = 0
    """Steps done in all epochs."""
    metrics_bytes: int = 0
    """Length of metrics.jsonl at that moment."""
    seconds: float = 0.0
    """Time spent training, over all its parts."""
    best: float | None = None
    """The best figure so far."""
    best_epoch: int = 0
    """The epoch that it came from, from 1."""
    stale: int = 0
    """Epochs since then."""
    flat: int = 0
    """Steps in a row with all scores equal."""
    pending: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """Values of steps that are not in metrics.jsonl yet."""
    finished: bool = False
    """Whether the run is over."""


@dataclass
class Learner:
    """Everything that learns."""

    model: RetrievalModel
    loss: torch.nn.Module
    optimizer: torch.optim.Optimizer
    average: MovingAverage | None = None
    scaler: Any = None


def write_checkpoint(
    folder: Path, learner: Learner, progress: Progress, settings: dict[str, Any], data: dict[str, Any]
) -> None:
    """Write a checkpoint into an empty folder; all of it is on the disk afterwards.

    Args:
        folder: Where to.
        learner: What learns.
        progress: Where the run stands.
        settings: The run's settings, so that a continuation with others can be refused.
        data: What tells the dataset from another: name, numbers of images and captions, hash.
    """
    tensors = _optimizer_tensors(learner.optimizer)
    tensors |= {f"loss/{name}": value for name, value in learner.loss.state_dict().items()}
    if learner.average is None:
        write_model(learner.model, folder)
    else:
        tensors |= {f"weights/{name}": value for name, value in learner.model.trained_state().items()}
        with learner.average.in_place(learner.model):
            write_model(learner.model, folder)
    write_whole(folder / TENSORS, save(_plain(tensors)))
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
    if is_registered(model.config):
        write_files(model, folder)
        return
    write_whole(folder / WEIGHTS, save(_plain(model.trained_state())))
    write_whole(folder / "config.json", json.dumps({"class": type(model).__qualname__, **model.as_dict()}) + "\n")


def read_state(folder: Path) -> dict[str, Any]:
    """Read ``training.json`` of a checkpoint.

    Raises:
        ValueError: It is missing, damaged, or of another version.
    """
    path = folder / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        version = state["version"]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError) as error:
        got = f"none that can be read ({str(error)[:200]})"
        fail(str(path), "the state of a training run", got, "start a new run")
    if version != _VERSION:
        fail(str(path), f"version {_VERSION}", f"version {version}", "use the release of bcls that wrote it")
    for key in ("progress", "settings", "data"):
        if not isinstance(state.get(key), dict):
            fail(str(path), f"a mapping `{key}`", repr(state.get(key)), "the file is damaged: use another checkpoint")
    checked: dict[str, Any] = state
    return checked


def restore(folder: Path, learner: Learner, state: dict[str, Any]) -> Progress:
    """Put everything that learns back to where a checkpoint was.

    Raises:
        ValueError: A file is cut off, or the checkpoint is of another model; the message says what differs.
    """
    tensors = _read(folder / TENSORS)
    weights = _read(folder / WEIGHTS)
    device = learner.model.device
    if learner.average is None:
        learner.model.load_trained_state(weights)
    else:
        learner.average.state = {name: value.to(device) for name, value in weights.items()}
        learner.model.load_trained_state(_below(tensors, "weights/"))
    learner.loss.load_state_dict(_below(tensors, "loss/"))
    _restore_optimizer(learner.optimizer, _below(tensors, "optimizer/"), folder / TENSORS)
    if learner.scaler is not None and state["scaler"]:
        learner.scaler.load_state_dict(state["scaler"])
    try:
        values = dict(state["progress"])
        values["pending"] = [(step, row) for step, row in values["pending"]]
        return Progress(**values)
    except (KeyError, TypeError, ValueError) as error:
        got = f"something else ({str(error)[:200]})"
        fail(str(folder / STATE), "a position in the run", got, "the file is damaged: use another checkpoint")


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {}
    for number, parameter in enumerate(_parameters(optimizer)):
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer/{number}/{key}"] = torch.as_tensor(value)
    return tensors


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], path: Path) -> None:
    parameters = list(_parameters(optimizer))
    optimizer.state.clear()
    for name, value in tensors.items():
        number, _, key = name.partition("/")
        if not number.isdecimal() or len(number) > 9 or int(number) >= len(parameters):
            fail(str(path), f"{len(parameters)} parameters", f"number {number}", "the checkpoint is of another model")
        parameter = parameters[int(number)]
        if value.ndim and value.shape != parameter.shape:
            got = f"{tuple(value.shape)} for number {number}"
            fail(str(path), f"shape {tuple(parameter.shape)}", got, "the checkpoint is of another model")
        optimizer.state[parameter][key] = _as_before(value, parameter, fused=bool(optimizer.defaults.get("fused")))


def _as_before(value: Tensor, parameter: Tensor, *, fused: bool) -> Tensor:
    if value.ndim:
        # In the parameter's own order of memory: filters of convolutions lie channels last, and a fused step wants one
        # order for all that it reads.
        return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
    # Adam counts its steps on the CPU unless it is fused.
    return value.to(parameter.device if fused else torch.device("cpu"), copy=True)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    # Copies: tied weights share memory, which the format does not allow.
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        fail(str(path), "a file of the checkpoint", "none", "copy the whole checkpoint again")
    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        got = f"{path.stat().st_size} bytes that are not ({error})"
        fail(str(path), "a whole safetensors file", got, "it was cut off: use another checkpoint")
