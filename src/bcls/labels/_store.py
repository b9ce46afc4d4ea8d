"""The files of cached embeddings: written block by block, resumed after a stop, and complete or not there.

While it is made, ``embeddings.part.npy`` holds the rows and ``progress.json`` says for which blocks they are on the
disk. In the end the rows get their name, and ``manifest.json`` is written last: without it there is no cache.
"""

import json
import operator
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls._files import take, write_whole
from bcls.data.features import load_array, new_array

ROWS, MANIFEST = "embeddings.npy", "manifest.json"
_PART, _PROGRESS, _LOCK = "embeddings.part.npy", "progress.json", ".lock"

Manifest: TypeAlias = dict[str, Any]
#: Computes the blocks of these numbers, in any order.
Compute: TypeAlias = Callable[[list[int]], Iterator[tuple[int, NDArray[np.float16]]]]


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a complete cache, else ``None``."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return manifest if isinstance(manifest, dict) and (folder / ROWS).is_file() else None


def open_rows(folder: Path, count: int) -> NDArray[np.float16]:
    """Map the rows of a complete cache into memory, not to be written to.

    Raises:
        ValueError: The file is damaged, or has not ``count`` rows.
    """
    rows: NDArray[np.float16] = load_array(folder / ROWS)
    if rows.ndim != 2 or len(rows) != count or rows.dtype != np.float16:
        got = f"shape {rows.shape} of {rows.dtype}"
        fail(str(folder / ROWS), f"{count} rows of float16", got, f"remove {folder}: the rows are made again")
    return rows


def write_rows(folder: Path, manifest: Manifest, count: int, block: int, compute: Compute) -> None:
    """Compute all blocks that are not on the disk yet, and make the cache complete.

    Args:
        folder: Where; an older cache stays whole until the new one is complete.
        manifest: What the cache is made of. Blocks that were made for another manifest are thrown away.
        count: Rows, at least one.
        block: Rows of a block; the last may have fewer.
        compute: Computes blocks by their numbers.
    """
    blocks = range(-(-count // block))
    rows, done = _resume(folder, manifest, count, set(blocks))
    left = [number for number in blocks if number not in done]
    for number, values in compute(left):
        if rows is None:
            rows = new_array(folder / _PART, np.float16, (count, values.shape[1]))
        rows[number * block : number * block + len(values)] = values
        rows.flush()
        done.add(number)
        write_whole(folder / _PROGRESS, json.dumps({"manifest": manifest, "done": sorted(done)}))
    del rows
    _sync(folder / _PART)
    (folder / MANIFEST).unlink(missing_ok=True)
    (folder / _PART).replace(folder / ROWS)
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    (folder / _PROGRESS).unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time write to a folder; others wait. The lock goes with its process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+", encoding="utf-8") as file:
        take(file, wait=True)
        yield


def _resume(
    folder: Path, manifest: Manifest, count: int, blocks: set[int]
) -> tuple["np.memmap[Any, Any] | None", set[int]]:
    """The rows of a broken-off run with the numbers of its blocks, or nothing."""
    try:
        noted = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
        if noted["manifest"] == manifest:
            done = {operator.index(number) for number in noted["done"]}
            if done == blocks and not (folder / _PART).exists() and not (folder / MANIFEST).exists():
                # All were done, and the rows had their name: only the manifest was missing.
                (folder / ROWS).rename(folder / _PART)
            rows = np.lib.format.open_memmap(folder / _PART, mode="r+")
            if rows.ndim == 2 and len(rows) == count and rows.dtype == np.float16:
                return rows, done
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # none, or not one that can be gone on with
    # It must not speak for the file that is begun now.
    (folder / _PROGRESS).unlink(missing_ok=True)
    return None, set()


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
