"""``metrics.jsonl``: a line for each reading of the steps and one for each validation, none twice and none lost.

Which curves tell the course of a run.
"""

import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bcls._core.errors import fail, shortened
from bcls.training.run_folder import METRICS


class Journal:
    """Appends to ``metrics.jsonl``, and to TensorBoard where it is installed.

    Args:
        folder: The run's folder.
        keep: Bytes to keep of what is there; lines after them are from steps that are done again.
        step: The last one that is kept; TensorBoard's curves continue after it.

    Raises:
        ValueError: The file is shorter than that.
    """

    def __init__(self, folder: Path, keep: int, step: int) -> None:
        path = folder / METRICS
        path.touch()
        if path.stat().st_size < keep:
            got = f"{path.stat().st_size} bytes"
            fail(str(path), f"at least the {keep} bytes that the checkpoint knows", got, "put the whole file back")
        self._file = path.open("r+b")
        self._file.truncate(keep)
        self._file.seek(keep)
        self._board: Any = None
        if importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, kind: str, epoch: int, step: int, values: dict[str, Any]) -> None:
        """Add a line: what it is, where in the run, and its values."""
        line = {"kind": kind, "epoch": epoch, "step": step, **values}
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def settle(self) -> int:
        """See that all lines are on the disk; how many bytes they are."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``; a last one that was cut off is left out.

    Raises:
        ValueError: A line is none that :meth:`Journal.write` writes; the message names the file and the line.
        OSError: The file cannot be read.
    """
    path = folder / METRICS
    # What stands behind the last newline was being written when the run was killed, and is written again by the next.
    whole = path.read_bytes().split(b"\n")[:-1]
    return [_read_line(f"{path}, line {number}", line) for number, line in enumerate(whole, 1)]


def _read_line(where: str, content: bytes) -> dict[str, Any]:
    """One line, with all that says where in the run it belongs."""
    remedy = "take the line out, or put the whole file back"
    try:
        line: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        fail(where, "a line of JSON", f"{shortened(repr(content), 80)} ({error})", remedy)
    if not isinstance(line, dict):
        fail(where, "a mapping", repr(line), remedy)
    if not isinstance(line.get("kind"), str):
        fail(where, "`kind` to be a word", repr(line.get("kind")), remedy)
    for key in ("epoch", "step"):
        if isinstance(line.get(key), bool) or not isinstance(line.get(key), int):
            fail(where, f"`{key}` to be a whole number", repr(line.get(key)), remedy)
    return line


Lines = Sequence[Mapping[str, Any]]
#: Of the steps' values, not terms of the loss.
_ASIDE = {"kind", "epoch", "step", "loss", "lr", "seconds", "gradient", "spread"}


class Curve(NamedTuple):
    """One plot: some keys of lines of ``metrics.jsonl``, over their axis."""

    title: str
    axis: str
    lines: Lines
    keys: list[str]


def curves_of(steps: Lines, looks: Lines) -> list[Curve]:
    """The plots of a run, those that it has values for.

    Args:
        steps: Lines of the kind ``step``.
        looks: Lines of the kind ``validation``.

    Example:
        >>> [curve.title for curve in curves_of([{"step": 1, "loss": 0.5, "lr": 0.1}], [])]
        ['Loss', 'Learning rate']
    """
    terms = list(dict.fromkeys(key for line in steps for key in line if key not in _ASIDE))
    wanted = [
        Curve("Loss", "step", steps, ["loss", *(terms if len(terms) > 1 else [])]),
        Curve("Learning rate", "step", steps, ["lr"]),
        Curve("Norm of the gradient", "step", steps, ["gradient"]),
        Curve("Validation loss", "epoch", looks, ["loss"]),
        Curve("Validation RSUM", "epoch", looks, ["rsum"]),
        Curve("Validation tau", "epoch", looks, ["i2t_tau_a", "t2i_tau_a"]),
    ]
    present = [one._replace(keys=[key for key in one.keys if any(key in line for line in one.lines)]) for one in wanted]
    return [one for one in present if one.keys]
