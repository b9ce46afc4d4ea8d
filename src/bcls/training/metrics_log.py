"""Values of a run: the monitor of its steps, ``metrics.jsonl``, lines on standard error, and ``report.html``.

On a GPU reading a value waits for all work before it. So each step leaves its values on the device, and they are read
together every ``log_every`` steps and before each checkpoint: NaN is found a few steps late, but no checkpoint ever
contains it. On a CPU values are read at every step.
"""

import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NoReturn

from bcls._core.config import Shape, check_shape
from bcls._core.errors import fail, shortened
from bcls._core.extras import MissingExtraError
from bcls._core.files import write_whole
from bcls.models.loading import run_settings
from bcls.reports.blocks import Cell, Table
from bcls.reports.charts import ChartImage, ChartLine, line_chart
from bcls.reports.html import render_page
from bcls.training.run_folder import CONFIG, ENVIRONMENT, METRICS, REPORT
from bcls.training.sampler import Indices

if TYPE_CHECKING:
    from torch import Tensor


#: A step and its values by name.
StepValues = tuple[int, dict[str, float]]
#: Scores of a batch with a smaller standard deviation are all the same.
_COLLAPSED = 1e-3
#: This many steps in a row are no accident.
_COLLAPSED_STEPS = 50
#: Values of a step that are no terms of the loss.
_NO_TERMS = {"spread", "gradient"}
#: Columns of the validation table; recalls are shown as `i2t R@1`.
_COLUMNS = ("i2t_r1", "i2t_r10", "t2i_r1", "t2i_r10", "rsum", "tau")


def log_line(line: str) -> None:
    """Print a line on standard error; of several processes only the first prints."""
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr, flush=True)


def log_epoch(epoch: int, epochs: int, metrics: Mapping[str, float], seconds: float, *, better: bool) -> None:
    """Print a row of the validation table; its header precedes the first row and every tenth after it."""
    keys = [key for key in _COLUMNS if key in metrics]
    if epoch % 10 == 1:
        log_line("validation  " + "  ".join(f"{key.replace('_r', ' R@'):>8}" for key in keys) + "  time left")
    cells = "  ".join(f"{metrics[key]:8.4f}" if key == "tau" else f"{metrics[key]:8.2f}" for key in keys)
    left = duration(seconds / epoch * (epochs - epoch))
    log_line(f"epoch {epoch:<4}  {cells}  {left:>9}{'  best' if better else ''}")


def duration(seconds: float) -> str:
    """Seconds in readable units.

    Example:
        >>> duration(42.2), duration(200), duration(7500)
        ('42 s', '3 min', '2 h 05 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


class DivergedError(ValueError):
    """A term of the loss or the gradient is NaN or infinite; the message has the step, the term and the captions."""


def diverged(step: int, name: str, value: float, captions: Indices, caption_ids: Sequence[str]) -> NoReturn:
    """Report the batch and the term at fault.

    Raises:
        DivergedError: Always.
    """
    ids = [caption_ids[caption] for caption in captions[:8]]
    more = f" and {len(captions) - 8} more" if len(captions) > 8 else ""
    raise DivergedError(
        f"`{name}`: expected a finite number at step {step}, got {value} with captions {', '.join(ids)}{more}; "
        "the last checkpoint is from before it: lower --lr, set --clip, or use --precision bf16 in place of fp16"
    )


class StepMonitor:
    """Collects the values of steps, and detects NaN and collapse.

    Args:
        caption_ids: Ids of all captions, for error messages.
        check_gradient: Whether an infinite gradient is an error; with fp16 the scaler skips such steps.
        pending: Steps whose values were read but not yet written, from a checkpoint.
        flat: Steps in a row, up to now, with all scores equal.
    """

    def __init__(
        self, caption_ids: Sequence[str], *, check_gradient: bool, pending: Sequence[StepValues] = (), flat: int = 0
    ) -> None:
        self.check_gradient = check_gradient
        self.pending = list(pending)
        self.flat = flat
        self.caption_ids = caption_ids
        self._warned = False
        self._unread: list[tuple[int, list[str], Tensor, Indices]] = []

    def add(self, step: int, values: "dict[str, Tensor]", captions: Indices) -> None:
        """Add the values of a step, without waiting for them."""
        import torch

        stacked = torch.stack([value.detach().float().reshape(()) for value in values.values()])
        self._unread.append((step, list(values), stacked, captions))

    def read(self) -> None:
        """Read the values that were added since the last call.

        Raises:
            DivergedError: A value is NaN or infinite.
        """
        if not self._unread:
            return
        import torch

        # One synchronization with the device for all steps; the number of values may change with the loss.
        row = iter(torch.cat([stacked for _, _, stacked, _ in self._unread]).tolist())
        for step, names, _, captions in self._unread:
            values = {name: next(row) for name in names}
            for name, value in values.items():
                if not math.isfinite(value) and (name != "gradient" or self.check_gradient):
                    diverged(step, name, value, captions, self.caption_ids)
            self.flat = self.flat + 1 if values.get("spread", 1.0) < _COLLAPSED else 0
            self.pending.append((step, values))
        self._unread.clear()

    def take_means(self) -> dict[str, float]:
        """Mean of each value over the pending steps, with the sum of the terms first; clears the pending steps."""
        names = dict.fromkeys(name for _, values in self.pending for name in values)
        means = {name: fmean(values[name] for _, values in self.pending if name in values) for name in names}
        self.pending.clear()
        return {"loss": math.fsum(value for name, value in means.items() if name not in _NO_TERMS), **means}

    def collapse_warning(self) -> str | None:
        """The warning that the model gives all pairs the same score; returned once, after enough such steps."""
        if self._warned or self.flat < _COLLAPSED_STEPS:
            return None
        self._warned = True
        return (
            f"the scores of all pairs have been equal for {self.flat} steps: the model has collapsed, and a hinge loss "
            "stays at 2 x margin per anchor. Start again with --warm-negatives 2 or more (all negatives first), a soft "
            "loss such as triplet-sn or bcls, a lower --lr, or a --warmup"
        )


class MetricsLog:
    """Appends to ``metrics.jsonl``, and to TensorBoard if it is installed.

    Args:
        folder: The run's folder.
        keep: Bytes of the existing file to keep; lines after them are from steps that are repeated.
        step: The last step that is kept; TensorBoard's curves continue after it.

    Raises:
        ValueError: The file is shorter than ``keep``.
    """

    def __init__(self, folder: Path, keep: int, step: int) -> None:
        path = folder / METRICS
        path.touch()
        if path.stat().st_size < keep:
            got = f"{path.stat().st_size} bytes"
            fail(str(path), f"at least {keep} bytes, its size at the last checkpoint", got, "put the whole file back")
        self._file = path.open("r+b")
        self._file.truncate(keep)
        self._file.seek(keep)
        self._board: Any = None
        if importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, kind: str, epoch: int, step: int, values: Mapping[str, Any]) -> None:
        """Append a line: its kind, its position in the run, and its values."""
        self._file.write(json.dumps({"kind": kind, "epoch": epoch, "step": step, **values}).encode() + b"\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def sync(self) -> int:
        """Make sure that all lines are on the disk; returns the length of the file in bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``; an incomplete last line is skipped.

    Raises:
        ValueError: A line was not written by :meth:`MetricsLog.write`; the message names the file and the line.
        OSError: The file cannot be read.
    """
    path, hint = folder / METRICS, "take the line out, or put the whole file back"
    shape, what = {"kind": str, "epoch": int, "step": int}, "a line of JSON"
    # A line without a newline was being written when the run was killed; the resumed run writes it again.
    lines = path.read_bytes().split(b"\n")[:-1]
    return [read_object(f"{path}, line {number}", line, shape, hint, what) for number, line in enumerate(lines, 1)]


def read_object(where: str, content: bytes, shape: Shape, hint: str, expected: str = "a JSON object") -> dict[str, Any]:
    """Read a JSON object and check the parts that are used.

    Args:
        where: The file, and the line if it has several objects.
        content: The JSON.
        shape: Required content, see :func:`bcls._core.config.check_shape`.
        hint: What to do if it is damaged.
        expected: What it should be, for the message.

    Raises:
        ValueError: If it is not such an object; the message begins with ``where``.
    """
    try:
        found: dict[str, Any] = json.loads(content)
    except (ValueError, RecursionError) as error:
        fail(where, expected, f"{shortened(repr(content), 80)} ({error})", hint)
    check_shape(where, found, shape, hint)
    return found


def write_report(folder: Path) -> None:
    """Write ``report.html`` from the other files of a run.

    Args:
        folder: Folder of the run. Without matplotlib the page has no charts but a hint how to install it.
    """
    lines = read_metrics(folder)
    steps = [line for line in lines if line["kind"] == "step"]
    validations = [line for line in lines if line["kind"] == "validation"]
    summary = f"{steps[-1]['step']} steps in {duration(steps[-1]['seconds'])}." if steps else "No steps."
    settings = run_settings(folder)
    named = {key: settings.get(key, {}).get("name") for key in ("model", "loss")} | {"data": settings.get("data")}
    about = ", ".join(f"{key} {name}" for key, name in named.items() if name)
    page = render_page(
        "run.html",
        f"{folder.name}: training run",
        name=folder.name,
        summary=f"{about}: {summary}" if about else summary,
        **charts_or_hint(lambda: run_charts(steps, validations)),
        validation=_validation_table(validations) if validations else None,
        settings=(folder / CONFIG).read_text(encoding="utf-8"),
        environment=json.dumps(json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8")), indent=1),
    )
    write_whole(folder / REPORT, page)


def charts_or_hint(draw: Callable[[], Sequence[ChartImage | None]]) -> dict[str, Any]:
    """Draw charts for a template: those that have values, or without matplotlib a hint how to install it."""
    try:
        return {"charts": [chart for chart in draw() if chart is not None], "hint": ""}
    except MissingExtraError as error:
        return {"charts": [], "hint": str(error)}


def run_charts(steps: Sequence[Mapping[str, Any]], validations: Sequence[Mapping[str, Any]]) -> list[ChartImage | None]:
    """Draw the metrics of a run.

    Args:
        steps: Lines of ``metrics.jsonl`` of the kind ``step``.
        validations: Those of the kind ``validation``.

    Returns:
        A chart for each group of metrics; ``None`` for one without values.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    others = {"kind", "epoch", "step", "loss", "lr", "seconds", *_NO_TERMS}
    terms = list(dict.fromkeys(key for line in steps for key in line if key not in others))
    groups = (
        ("Loss", "step", steps, ["loss", *(terms if len(terms) > 1 else [])]),
        ("Learning rate", "step", steps, ["lr"]),
        ("Norm of the gradient", "step", steps, ["gradient"]),
        ("Validation loss", "epoch", validations, ["loss"]),
        ("Validation RSUM", "epoch", validations, ["rsum"]),
        ("Validation tau", "epoch", validations, ["i2t_tau_a", "t2i_tau_a"]),
    )
    return [
        line_chart(title, axis, [ChartLine(key, points_of(lines, axis, key)) for key in keys])
        for title, axis, lines, keys in groups
    ]


def points_of(lines: Sequence[Mapping[str, Any]], x: str, y: str) -> list[tuple[float, float]]:
    """Read the points of a line chart from lines of ``metrics.jsonl``, those where both values are numbers.

    Example:
        >>> points_of([{"step": 1, "loss": 0.5}, {"step": 2}, {"step": 3, "loss": "?"}], "step", "loss")
        [(1.0, 0.5)]
    """
    pairs = [(line.get(x), line.get(y)) for line in lines]
    return [(float(a), float(b)) for a, b in pairs if isinstance(a, int | float) and isinstance(b, int | float)]


def _validation_table(validations: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each validation, the best one in bold."""
    keys = [key for key, value in validations[0].items() if isinstance(value, float)]
    best = max((number for number, one in enumerate(validations) if one["best"]), default=-1)
    rows = []
    for number, one in enumerate(validations):
        texts = [f"{one[key]:.{4 if 'tau' in key or key == 'loss' else 2}f}" for key in keys]
        rows.append([Cell(text, bold=number == best) for text in (str(one["epoch"]), *texts)])
    return Table(["epoch", *keys], rows)
