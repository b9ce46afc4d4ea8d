"""Files that faiss maps into memory: made from the rows, named after the rows they cover, safe to lose."""

import os
import re
from pathlib import Path
from typing import Any

_NAME = re.compile(r"vectors-(\d+)-(\d+)\.faiss")
#: Follows what faiss wrote, with its length: faiss reads past the end of a file that was cut short.
_END = b"bcls-end"


def read_newest(
    faiss: Any, place: Path, epoch: int, rows: int, dimension: int, *, mapped: bool = True
) -> tuple[Any, int]:
    """The index that covers most of the rows of an epoch, and how many; ``(None, 0)`` where there is none.

    A file that is damaged or belongs to something else is passed over: the rows themselves are still there.
    """
    there = [match for path in place.glob("vectors-*.faiss") if (match := _NAME.fullmatch(path.name))]
    sizes = sorted((int(match[2]) for match in there if int(match[1]) == epoch and int(match[2]) <= rows), reverse=True)
    for size in sizes:
        if not _is_whole(_path(place, epoch, size)):
            continue
        try:
            index = faiss.read_index(str(_path(place, epoch, size)), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
        except RuntimeError:
            continue
        if index.ntotal == size and index.d == dimension:
            return index, size
    return None, 0


def write_newest(faiss: Any, place: Path, epoch: int, rows: int, index: Any) -> None:
    """Write an index whole, then drop the older files; whoever has one mapped keeps it."""
    final = _path(place, epoch, rows)
    temporary = place / f".{final.name}.{os.getpid()}.tmp"
    try:
        try:
            faiss.write_index(index, str(temporary))
        except RuntimeError as error:
            raise OSError(28, f"faiss cannot write its file ({str(error).splitlines()[0]})", str(final)) from error
        with temporary.open("ab") as file:
            file.write(_END + file.tell().to_bytes(8, "little"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    for path in [*place.glob("vectors-*.faiss"), *place.glob(".vectors-*.tmp")]:
        if path != final:
            path.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    try:
        file = path.open("rb")
    except FileNotFoundError:  # the writer has put a newer one in its place since it was listed
        return False
    with file:
        length = file.seek(0, os.SEEK_END) - len(_END) - 8
        if length < 0:
            return False
        file.seek(length)
        return file.read() == _END + length.to_bytes(8, "little")


def _path(place: Path, epoch: int, rows: int) -> Path:
    return place / f"vectors-{epoch}-{rows}.faiss"
