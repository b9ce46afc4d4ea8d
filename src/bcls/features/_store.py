"""The feature file of a split while it is made: rows first, then a line that says they are there."""

import json
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._checks import fail
from bcls._files import sync_folder, write_whole
from bcls.features._record import difference


class SplitFile:
    """``<split>.npy`` in the making. Whenever the process is killed, the next one goes on where it was.

    Rows are written to ``.<split>.part`` and forced onto the disk before a line in ``.<split>.blocks`` says that their
    block is done; the first line there holds what the features depend on. When all blocks are done, the file gets its
    name.

    Args:
        folder: Folder of the features.
        split: Name of the split.
        shape: Number of rows, then the shape of one row.
        depends: What the bytes depend on; another extraction under this name is refused.

    Raises:
        ValueError: A broken-off extraction depends on something else.
    """

    def __init__(self, folder: Path, split: str, shape: tuple[int, ...], depends: Mapping[str, Any]) -> None:
        self.path = folder / f"{split}.npy"
        self._part, self._journal = folder / f".{split}.part", folder / f".{split}.blocks"
        self._shape = shape
        #: Blocks that are done, with the ids of pictures whose rows are zero.
        self.done: dict[int, list[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if self._journal.exists() and (self._part.exists() or self.path.exists()):
            self._take_up(dict(depends))
        else:
            self._begin(dict(depends))

    def write(self, block: int, start: int, rows: npt.NDArray[np.float16], zero: Sequence[str]) -> None:
        """Keep the rows of a block.

        Args:
            block: Its number.
            start: Number of its first row.
            rows: The rows.
            zero: Ids of the pictures in it that cannot be read and have rows of zeros.
        """
        begin = self._part.stat().st_size - int(np.prod(self._shape)) * rows.itemsize
        with self._part.open("r+b") as file:
            file.seek(begin + start * rows[0].nbytes)
            file.write(np.ascontiguousarray(rows).data)
            file.flush()
            os.fsync(file.fileno())
        with self._journal.open("ab") as file:
            file.write(json.dumps({"block": block, "zero": list(zero)}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.done[block] = list(zero)

    def finish(self) -> None:
        """Give the file its name; the caller says that it is finished and then calls :meth:`forget`."""
        if self._part.exists():
            self._part.replace(self.path)
            sync_folder(self.path.parent)

    def forget(self) -> None:
        """Drop the notes about blocks."""
        self._journal.unlink(missing_ok=True)

    def _begin(self, depends: dict[str, Any]) -> None:
        self._journal.unlink(missing_ok=True)
        with self._part.open("wb") as file:
            header = {"descr": "<f2", "fortran_order": False, "shape": self._shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + int(np.prod(self._shape)) * 2)
            file.flush()
            os.fsync(file.fileno())
        write_whole(self._journal, json.dumps(depends) + "\n")
        sync_folder(self._journal.parent)

    def _take_up(self, depends: dict[str, Any]) -> None:
        whole, _, _ = self._journal.read_bytes().rpartition(b"\n")
        try:
            before, *lines = map(json.loads, whole.decode().split("\n"))
            before = dict(before)
            done = {operator.index(line["block"]): list(line["zero"]) for line in lines}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"a damaged one ({' '.join(str(error).split())[:200]})"
            fail(str(self._journal), "notes about the blocks that are done", reason, f"remove {self._journal.parent}")
        other = difference(before, depends)
        if other is not None:
            key, then, now = other
            remedy = f"finish that one first, choose another name, or remove {self._journal.parent}"
            fail(key, f"{then}, as in the extraction that was broken off", now, remedy)
        self.done = done
        os.truncate(self._journal, len(whole) + 1)  # a line that was cut off
