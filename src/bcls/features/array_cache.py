"""Resumable cache of a large array: an ``.npy`` file that is computed block by block.

Two files exist beside the final file ``name.npy`` while it is computed. ``.name.part`` holds the rows. ``.name.blocks``
is a journal with one JSON object per line: first the settings that the rows depend on, then one line for each block
whose rows are on disk. The part is renamed when all blocks are present, and the caller then writes a manifest. The
array is complete only if the manifest lists it.
"""

import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bcls import __version__
from bcls._core.errors import fail, reason_of, shortened
from bcls._core.extras import version_of
from bcls._core.files import rename, sync, sync_folder, write_whole
from bcls.data.features import load_array, new_array


class ArrayCache:
    """A float16 ``.npy`` file that is written block by block and resumed after an interruption.

    The process may be killed at any moment: rows are flushed to disk before the journal lists their block, so the next
    process computes only the blocks that are not listed and ends with the same bytes. Only one process may write at a
    time; callers hold :func:`bcls._core.locks.lock_folder`.

    Args:
        path: The final ``.npy`` file. Its folder is created if necessary.
        rows: Number of rows of the array. The shape of a row is taken from the first block.
        block: Number of rows in a block; the last block may be shorter.
        settings: Everything that the rows depend on, as JSON values.
        restart: Discard an unfinished file with other settings instead of raising an error.

    Attributes:
        done: The finished blocks. Each has a list of the items for which it holds zeros instead of values.

    Raises:
        ValueError: An unfinished file has other settings, or its journal is damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cache = ArrayCache(Path(folder) / "squares.npy", 5, 2, {"power": 2})
        ...     for number in cache.remaining:
        ...         cache.write(number, np.arange(5)[2 * number : 2 * number + 2, None] ** 2)
        ...     cache.finish(lambda: None)
        ...     np.load(cache.path).ravel()
        array([ 0.,  1.,  4.,  9., 16.], dtype=float16)
    """

    def __init__(
        self, path: Path, rows: int, block: int, settings: Mapping[str, Any], *, restart: bool = False
    ) -> None:
        self.path = path
        self.done: dict[int, list[str]] = {}
        self._rows, self._block, self._settings, self._restart = rows, block, dict(settings), restart
        self._part, self._journal = path.with_name(f".{path.stem}.part"), path.with_name(f".{path.stem}.blocks")
        self._offset: int | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._journal.exists() and not self._resume():
            self._journal.unlink()
            self.done = {}

    @property
    def remaining(self) -> list[int]:
        """Numbers of the blocks that have to be computed."""
        return [number for number in range(-(-self._rows // self._block)) if number not in self.done]

    def write(self, number: int, values: npt.NDArray[Any], zero: Sequence[str] = ()) -> None:
        """Write a block.

        Args:
            number: Number of the block.
            values: Its rows.
            zero: Items of the block that have no values and are stored as zeros.

        Raises:
            OSError: The disk is full.
        """
        values = np.ascontiguousarray(values, dtype=np.float16)
        if self._offset is None:
            self._offset = self._create((self._rows, *values.shape[1:]))
        with self._part.open("r+b") as file:
            file.seek(self._offset + number * self._block * values[0].nbytes)
            file.write(values.data)
            sync(file)
        with self._journal.open("ab") as file:
            file.write(json.dumps({"block": number, "zero": list(zero)}).encode() + b"\n")
            sync(file)
        self.done[number] = list(zero)

    def finish(self, write_manifest: Callable[[], None]) -> None:
        """Move the finished rows to :attr:`path` and record them.

        Args:
            write_manifest: Writes the manifest. It is called after the rows are in place; only then is the journal
                removed.
        """
        if self._part.exists():
            rename(self._part, self.path)
            sync_folder(self.path.parent)
        write_manifest()
        self._journal.unlink(missing_ok=True)

    def _create(self, shape: tuple[int, ...]) -> int:
        """Create the part and the journal; return the position of the first row in the file."""
        self._journal.unlink(missing_ok=True)
        offset = int(new_array(self._part, np.float16, shape).offset)
        write_whole(self._journal, json.dumps(self._settings) + "\n")
        sync_folder(self._journal.parent)
        return offset

    def _resume(self) -> bool:
        """Read the journal; return whether the unfinished file can be continued."""
        complete, _, _ = self._journal.read_bytes().rpartition(b"\n")
        try:
            before, *lines = map(json.loads, complete.decode().split("\n"))
            changed = first_difference(dict(before), self._settings)
            self.done = {operator.index(line["block"]): list(line["zero"]) for line in lines}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if self._restart:
                return False
            got = f"a damaged file ({reason_of(error)})"
            fail(str(self._journal), "a list of finished blocks", got, f"delete {self._journal.parent} and start again")
        if changed is not None and not self._restart:
            hint = f"finish that one first, choose another name, or delete {self._journal.parent}"
            fail(changed.name, f"{changed.before}, as in the unfinished computation", changed.now, hint)
        # Without the part, the rows were already renamed and only the manifest is missing.
        file = self.path if not self._part.exists() and not self.remaining else self._part
        try:
            rows = load_array(file)
        except (OSError, ValueError):
            return False
        os.truncate(self._journal, len(complete) + 1)  # removes a line that was cut off
        self._offset = int(getattr(rows, "offset", 0))
        return changed is None and rows.shape[:1] == (self._rows,) and rows.dtype == np.float16


class Difference(NamedTuple):
    """A setting with two values, shortened for messages."""

    name: str
    before: str
    now: str


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> Difference | None:
    """Return the first setting that differs from a recorded one, ``None`` if all are equal.

    Example:
        >>> first_difference({"side": 224, "views": 4}, {"side": 224})
        Difference(name='views', before='4', now='none')
    """
    now = json.loads(json.dumps(now))
    for name in {**now, **before}:  # includes settings that only one of them has
        if (name in before, before.get(name)) != (name in now, now.get(name)):
            values = (shortened(repr(one[name])) if name in one else "none" for one in (before, now))
            return Difference(shortened(name), *values)
    return None


def installed_versions(*packages: str) -> dict[str, str]:
    """Return the versions of this library and of those packages that are installed, for manifests."""
    return {"bcls": __version__} | {package: found for package in packages if (found := version_of(package))}
