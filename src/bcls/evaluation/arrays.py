"""Matrices in ``.npy``, ``.npy.gz``, ``.npz`` and ``.safetensors`` files, read without executing code from them."""

import gzip
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import fail
from bcls._core.extras import MissingExtraError, require
from bcls._core.files import user_path

#: Keys of arrays that hold the ids of the rows and columns of the matrix in the same file.
ID_KEYS = ("image_ids", "caption_ids")
#: File name endings of array files.
ENDINGS = (".npy", ".npy.gz", ".npz", ".safetensors")
_WITH_KEY = re.compile(r"(?P<file>.+?\.(?:npz|safetensors)):(?P<key>.+)")
# Bytes decompressed at a time, and the longest header that numpy accepts.
_CHUNK, _LONGEST_HEADER = 2**20, 10_000
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_NUMPY_TYPES = {"BOOL", "U8", "U16", "U32", "U64", "I8", "I16", "I32", "I64", "F16", "F32", "F64"}


@dataclass(frozen=True)
class Stored:
    """A matrix from a file, the name it was requested by, and the ids of its images or captions in the same file."""

    name: str
    array: NDArray[Any]
    ids: Mapping[str, list[str]] = field(default_factory=dict)


def open_matrix(name: str) -> Stored:
    """Open a matrix of real numbers. An ``.npy`` file is memory-mapped.

    Args:
        name: Path of the file, followed by ``:key`` if an ``.npz`` or ``.safetensors`` file holds several arrays.
            The arrays ``image_ids`` and ``caption_ids`` do not count.

    Returns:
        The matrix, with the ids in its file.

    Raises:
        ValueError: If the file is of another type, is damaged, has no such key, or holds no matrix of real numbers.
        OSError: If it cannot be read.
        MissingExtraError: If it has bfloat16 or 8-bit floats, and torch is not installed.
    """
    whole = user_path(name)
    match = _WITH_KEY.fullmatch(name) if not whole.exists() else None
    path, key = (user_path(match["file"]), match["key"]) if match else (whole, None)
    if not path.name.endswith(ENDINGS):
        hint = "save it with numpy.save(file, array)"
        fail(name, f"a file that ends in {', '.join(ENDINGS)}", path.suffix or "no ending", hint)
    if not path.exists():
        raise FileNotFoundError(2, "no such file", str(path))
    if path.suffix in (".npz", ".safetensors"):
        with _open_archive(path) as (keys, read):
            array = read(_choose(name, keys, key))
            ids = {one: [str(value) for value in read(one).astype(str).ravel()] for one in ID_KEYS if one in keys}
    else:
        array, ids = _from_npy(path), {}
    if array.ndim != 2 or not array.size:
        fail(name, "a matrix with at least one row and one column", f"shape {array.shape}", "check the saved array")
    if array.dtype.kind not in "fiub":
        fail(name, "real numbers", f"dtype {array.dtype}", "save it as float32")
    return Stored(name, array, ids)


def read_npz(path: Path, keys: Sequence[str]) -> list[NDArray[Any]]:
    """Read some arrays of an ``.npz`` archive, of any shape.

    Raises:
        ValueError: If it is damaged, or has no such array.
        OSError: If it cannot be read.
    """
    with _open_archive(path) as (known, read):
        for key in keys:
            if key not in known:
                got, hint = ", ".join(known) or "none", "create or copy it again"
                fail(str(path), f"the array {key!r}", got, hint, _WrongContentError)
        return [read(key) for key in keys]


@contextmanager
def _open_archive(path: Path) -> Iterator[tuple[list[str], Callable[[str], NDArray[Any]]]]:
    """Open an ``.npz`` or ``.safetensors`` file: its keys, and a function that reads the array of a key."""
    with _damaged(path), ExitStack() as stack:
        if path.suffix == ".npz":
            archive = stack.enter_context(_open_npz(path))
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            yield list(members), lambda key: _member(archive, members[key])
        else:
            from safetensors import safe_open

            file = stack.enter_context(safe_open(path, framework="numpy"))
            yield list(file.keys()), lambda key: _tensor(file, path, key)


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Turn any error of numpy, zip, gzip or safetensors about the content of a file into one that names the file."""
    try:
        yield
    except Exception as error:  # a damaged file raises a dozen types, from SyntaxError to zlib.error
        if isinstance(error, _WrongContentError | MissingExtraError):
            raise
        if isinstance(error, OSError) and error.filename is not None:
            raise  # the file cannot be opened
        reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
        fail(str(path), "a readable array file", f"an error ({reason})", "copy or save it again")


class _WrongContentError(ValueError):
    """An undamaged file without the requested array."""


def _from_npy(path: Path) -> NDArray[Any]:
    with _damaged(path):
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as packed:
                return _read_array(packed)
        with path.open("rb") as file:
            shape, _, dtype = _read_header(file)
            size, there = math.prod(shape) * dtype.itemsize, path.stat().st_size - file.tell()
        if there < size:  # numpy's product of the shape could overflow
            raise ValueError(f"{there} of the {size} bytes of an array of shape {shape}")
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return array


def _open_npz(path: Path) -> zipfile.ZipFile:
    with path.open("rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            file.seek(0)
            _read_header(file)
            fail(str(path), "an .npz archive", "one plain array", "give it the ending .npy", _WrongContentError)
    return zipfile.ZipFile(path)


def _member(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as file:
        return _read_array(file)


def _read_array(file: IO[bytes] | gzip.GzipFile) -> NDArray[Any]:
    """Read an array from a compressed stream.

    ``numpy.load`` allocates what the header declares before it reads the data; this function grows with the data, so
    that a small file cannot take all memory.
    """
    shape, columns_first, dtype = _read_header(file)
    if dtype.hasobject:
        raise ValueError("objects in place of numbers")
    size = math.prod(shape) * dtype.itemsize
    content = bytearray()
    while len(content) < size:
        part = file.read(min(_CHUNK, size - len(content)))
        if not part:
            raise ValueError(f"{len(content)} of the {size} bytes of an array of shape {shape}")
        content += part
    file.read(1)  # verifies the checksum, which follows the last byte
    flat: NDArray[Any] = np.frombuffer(content, dtype) if size else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if columns_first else "C")


def _read_header(file: IO[bytes] | gzip.GzipFile) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, memory order and dtype; the length of the header is checked before numpy reads it."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADER_READERS:
        raise ValueError(f"version {version} of the .npy format")
    start = file.tell()
    length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    file.seek(start)
    shape, columns_first, dtype = _HEADER_READERS[version](file)
    if any(side < 0 for side in shape):
        raise ValueError(f"a shape of {shape}")
    return shape, columns_first, dtype


def _tensor(file: Any, path: Path, key: str) -> NDArray[Any]:
    if file.get_slice(key).get_dtype() in _NUMPY_TYPES:
        found: NDArray[Any] = file.get_tensor(key)
        return found
    # numpy has neither bfloat16 nor 8-bit floats; float32 represents all of their values.
    require("torch", "train", f"reading bfloat16 or 8-bit floats from {path}")
    from safetensors import safe_open

    with safe_open(path, framework="pt") as tensors:
        widened: NDArray[Any] = tensors.get_tensor(key).float().numpy()
        return widened


def _choose(name: str, keys: Iterable[str], key: str | None) -> str:
    known = [one for one in keys if one not in ID_KEYS]
    listed = ", ".join(repr(one) for one in known) or "none"
    if key is None:
        if len(known) != 1:
            hint = f"choose one, as in {name}:{known[0]}" if known else "save a matrix in it"
            fail(name, "one array", f"{len(known)}: {listed}", hint, _WrongContentError)
        return known[0]
    if key not in known:
        fail(name, f"one of the arrays {listed}", repr(key), "give one of these after the colon", _WrongContentError)
    return key
