"""Arrays in ``.npy``, ``.npy.gz``, ``.npz`` and ``.safetensors`` files, read without running code from them."""

import gzip
import io
import lzma
import math
import re
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls._core.files import user_path

if TYPE_CHECKING:
    from torch import Tensor

#: Keys beside a matrix that say whose its rows and columns are.
ID_KEYS = ("image_ids", "caption_ids")
#: Endings of files that hold arrays.
ENDINGS = (".npy", ".npy.gz", ".npz", ".safetensors")
_WITH_KEY = re.compile(r"(?P<file>.+?\.(?:npz|safetensors)):(?P<key>.+)")
#: Bytes that are unpacked at a time, and the longest header that is looked at, as numpy has it.
_PART, _LONGEST_HEADER = 2**20, 10_000
# What is let through of a damaged header, which numpy reads as Python's literals, of an archive or of a stream;
# RuntimeError for archives of an unknown kind.
_BROKEN = (
    ValueError,
    TypeError,
    OverflowError,
    SyntaxError,
    RecursionError,
    MemoryError,
    EOFError,
    OSError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
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
    whole = user_path(name)
    match = _WITH_KEY.fullmatch(name) if not whole.exists() else None
    path, key = (user_path(match["file"]), match["key"]) if match else (whole, None)
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


def read_npz(path: Path, keys: Sequence[str]) -> list[NDArray[Any]]:
    """Read some arrays of an ``.npz`` archive, of whatever shape.

    Raises:
        ValueError: It is damaged, or has no such array.
        OSError: It cannot be read.
    """
    with _npz(path) as archive:
        members = {one.removesuffix(".npy"): one for one in archive.namelist()}
        for key in keys:
            if key not in members:
                fail(str(path), f"the array {key!r}", f"{', '.join(members) or 'none'}", "make or copy it again")
        try:
            return [_member(archive, members[key]) for key in keys]
        except _BROKEN as error:
            _refuse(path, error)


def _from_npy(path: Path) -> NDArray[Any]:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as packed:
                return _read_npy(packed)
        with path.open("rb") as file:
            shape, _, dtype = _read_header(file)
            wanted, there = _bytes_of(shape, dtype), path.stat().st_size - file.tell()
        if there < wanted:
            raise ValueError(_too_few(there, wanted, shape))
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except _BROKEN as error:
        _refuse(path, error)
    return array


def _npz(path: Path) -> zipfile.ZipFile:
    try:
        archive = None if _is_plain(path) else zipfile.ZipFile(path)
    except _BROKEN as error:
        _refuse(path, error)
    if archive is None:
        fail(str(path), "an .npz archive", "one plain array", "give it the ending .npy")
    return archive


def _from_npz(name: str, path: Path, key: str | None) -> Stored:
    with _npz(path) as archive:
        members = {one.removesuffix(".npy"): one for one in archive.namelist()}
        wanted = _choose(name, members, key)
        try:
            ids = {one: _texts(_member(archive, members[one])) for one in ID_KEYS if one in members}
            return Stored(name, _member(archive, members[wanted]), ids)
        except _BROKEN as error:
            _refuse(path, error)


def _is_plain(path: Path) -> bool:
    with path.open("rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            return False
        file.seek(0)
        _read_header(file)
        return True


def _member(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as file:
        return _read_npy(file)


def _read_npy(file: IO[bytes] | gzip.GzipFile) -> NDArray[Any]:
    """Read an array from a packed stream, taking memory for what is there and not for what the header promises.

    Raises:
        ValueError: It is no array of plain values, or a part of it is missing.
    """
    shape, columns_first, dtype = _read_header(file)
    if dtype.hasobject:
        raise ValueError("objects in place of numbers")
    wanted = _bytes_of(shape, dtype)
    content = bytearray()
    while len(content) < wanted:
        part = file.read(min(_PART, wanted - len(content)))
        if not part:
            raise ValueError(_too_few(len(content), wanted, shape))
        content += part
    file.read(1)  # has the checksum compared, which stands behind the last byte
    flat: NDArray[Any] = np.frombuffer(content, dtype) if wanted else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if columns_first else "C")


def _read_header(file: IO[bytes] | gzip.GzipFile) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and the kind of the values.

    Raises:
        ValueError: It is no header, or one that is far longer than that of numbers.
    """
    start = file.read(len(np.lib.format.MAGIC_PREFIX) + 2)
    start += file.read(2 if start[-2:] == b"\x01\x00" else 4)
    length = int.from_bytes(start[8:], "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    header = io.BytesIO(start + file.read(length))
    version = np.lib.format.read_magic(header)
    if version == (1, 0):
        shape, columns_first, dtype = np.lib.format.read_array_header_1_0(header)
    elif version == (2, 0):
        shape, columns_first, dtype = np.lib.format.read_array_header_2_0(header)
    else:
        raise ValueError(f"version {version} of the format, which numbers do not need")
    if any(side < 0 for side in shape):
        raise ValueError(f"a shape of {shape}")
    return shape, columns_first, dtype


def _bytes_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """How many bytes an array has; in Python's numbers, which numpy's would run out of."""
    return math.prod(shape) * dtype.itemsize


def _too_few(there: int, wanted: int, shape: tuple[int, ...]) -> str:
    return f"{there} of the {wanted} bytes of an array of shape {shape}"


def _from_safetensors(name: str, path: Path, key: str | None) -> Stored:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            keys = list(file.keys())
            tensor = file.get_tensor(_choose(name, keys, key))
            ids = {one: _texts(_as_numpy(file.get_tensor(one))) for one in ID_KEYS if one in keys}
    except SafetensorError as error:
        _refuse(path, error)
    return Stored(name, _as_numpy(tensor), ids)


def _as_numpy(tensor: "Tensor") -> NDArray[Any]:
    import torch

    # numpy has neither bfloat16 nor the eight-bit kinds, all of whose values are float32 as well.
    unknown = tensor.is_floating_point() and tensor.dtype not in {torch.float16, torch.float32, torch.float64}
    array: NDArray[Any] = (tensor.float() if unknown else tensor).numpy()
    return array


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
    if isinstance(error, OSError) and error.filename is not None:  # not damaged, but not to be opened
        raise error
    reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
    fail(str(path), "an undamaged file of numbers", f"something else ({reason})", "copy or save it again")
