"""``metrics.jsonl``: a line for each reading of the steps and one for each validation, none twice and none lost."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from bcls._checks import fail
from bcls.training.run_folder import METRICS


class Journal:
    """Appends to ``metrics.jsonl``, and to TensorBoard where it is installed.

    Args:
        folder: The run's folder.
        keep: Bytes to keep of what is there; lines after them are from steps that are done again.
        step: Where TensorBoard's curves continue.

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

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

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
    """The lines of a run's ``metrics.jsonl``; a last one that was cut off is left out."""
    lines = (folder / METRICS).read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
