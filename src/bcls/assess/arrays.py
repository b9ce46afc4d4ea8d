"""Arrays in ``.npy``, ``.npy.gz``, ``.npz`` and ``.safetensors`` files, read without running code from them."""

import gzip
import re
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail

#: Keys beside a matrix that say whose its rows and columns are.
ID_KEYS = ("image_ids", "caption_ids")
#: Endings of files that hold arrays.
ENDINGS = (".npy", ".npy.gz", ".npz", ".safetensors")
_WITH_KEY = re.compile(r"(?P<file>.+?\.(?:npz|safetensors)):(?P<key>.+)")
# What numpy lets through of a damaged header, archive or stream; the last for archives of an unknown kind.
_BROKEN = (
    ValueError,
    EOFError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    gzip.BadGzipFile,
    RuntimeError,
)


@dataclass(frozen=True)
class Stored:
    """A matrix from a file, the words that asked for it, and ids of its images or captions that lay beside it."""

    name: str
    array: NDArray[Any]
    ids: Mapping[str, list[str]] = field(default_factory=dict)


def open_matrix(name: str) -> Stored:
    """Open a matrix of real numbers; ``.npy`` and ``.safetensors`` files are mapped into memory.

    Args:
        name: Path of the file, with ``:key`` behind it where an ``.npz`` or ``.safetensors`` file holds several
            arrays. ``image_ids`` and ``caption_ids`` do not count among these.

    Returns:
        The matrix, with the ids that are in its file.

    Raises:
        ValueError: If the file is of another kind, is damaged, has no such key, or holds no matrix of real numbers.
        OSError: If it cannot be read.
    """
    match = _WITH_KEY.fullmatch(name) if not Path(name).exists() else None
    path, key = (Path(match["file"]), match["key"]) if match else (Path(name), None)
    if not path.name.endswith(ENDINGS):
        remedy = "save it with numpy.save(file, array)"
        fail(name, f"a file that ends in {', '.join(ENDINGS)}", path.suffix or "no ending", remedy)
    if not path.exists():
        raise FileNotFoundError(2, "no such file", str(path))
    if path.suffix == ".npz":
        stored = _from_npz(name, path, key)
    elif path.suffix == ".safetensors":
        stored = _from_safetensors(name, path, key)
    else:
        stored = Stored(name, _from_npy(path))
    array = stored.array
    if array.ndim != 2 or not array.size:
        fail(name, "a matrix with at least one row and one column", f"shape {array.shape}", "check what was saved")
    if array.dtype.kind not in "fiub":
        fail(name, "real numbers", f"dtype {array.dtype}", "save it as float32")
    return stored


def _from_npy(path: Path) -> NDArray[Any]:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as file:
                packed: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
                return packed
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except _BROKEN as error:
        _refuse(path, error)
    return array


def _from_npz(name: str, path: Path, key: str | None) -> Stored:
    try:
        archive = np.load(path, allow_pickle=False)
    except _BROKEN as error:
        _refuse(path, error)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        fail(str(path), "an .npz archive", "one plain array", "give it the ending .npy")
    with archive:
        wanted = _choose(name, archive.files, key)
        try:
            ids = {one: _texts(archive[one]) for one in ID_KEYS if one in archive.files}
            return Stored(name, archive[wanted], ids)
        except _BROKEN as error:
            _refuse(path, error)


def _from_safetensors(name: str, path: Path, key: str | None) -> Stored:
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            keys = list(file.keys())
            tensor = file.get_tensor(_choose(name, keys, key))
            ids = {one: _texts(file.get_tensor(one).numpy()) for one in ID_KEYS if one in keys}
    except SafetensorError as error:
        _refuse(path, error)
    # numpy has neither bfloat16 nor the eight-bit kinds, all of whose values are float32 as well.
    unknown = tensor.is_floating_point() and tensor.dtype not in {torch.float16, torch.float32, torch.float64}
    return Stored(name, (tensor.float() if unknown else tensor).numpy(), ids)


def _choose(name: str, keys: Iterable[str], key: str | None) -> str:
    known = [one for one in keys if one not in ID_KEYS]
    listed = ", ".join(repr(one) for one in known) or "none"
    if key is None:
        if len(known) != 1:
            example = f"choose one, as in {name}:{known[0]}" if known else "save a matrix in it"
            fail(name, "one array", f"{len(known)}: {listed}", example)
        return known[0]
    if key not in known:
        fail(name, f"one of the arrays {listed}", repr(key), "write one of these behind the colon")
    return key


def _texts(ids: NDArray[Any]) -> list[str]:
    return [str(one) for one in ids.astype(str).ravel().tolist()]


def _refuse(path: Path, error: Exception) -> NoReturn:
    reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
    fail(str(path), "an undamaged file of numbers", f"something else ({reason})", "copy or save it again")
