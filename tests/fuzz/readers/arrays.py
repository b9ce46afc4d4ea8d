"""Headers of ``.npy`` files: wrong shapes, types that run code, text that is no header."""

import gzip
import io
import struct
import zipfile

import numpy as np

from bcls.data.features import load_array
from bcls.evaluation.arrays import open_matrix
from tests.fuzz.damage import or_plain
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import put

_KINDS = (
    "'<f4'",
    "'<f2'",
    "'<i8'",
    "'|O'",
    "'|V8'",
    "'<U3'",
    "'<M8[ns]'",
    "'|S0'",
    "[('a', '<f4'), ('b', '|O')]",
    "'f'",
    "17",
    "'<f4,<f4'",
    "'" + "x" * 300 + "'",
    "None",
    "('<f4', (1000000, 1000000))",
)
_SHAPES = (
    "(2, 3)",
    "(2, 3, 4)",
    "()",
    "(0,)",
    "(6,)",
    "(-1, 3)",
    "(10**9, 10**9)",
    "(4611686018427387904, 4)",
    "(2.0, 3)",
    "[2, 3]",
    "(9223372036854775807,)",
    "('2',)",
    "(2, 3" + ", 1" * 70 + ")",
    "(" * 300,
    "(True, 6)",
    "None",
    "(1000000000000, 0)",
)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def lying(draw, seeds):
    """Return a file whose header does not match its data."""
    order = draw.choice(("False", "True", "0", "'x'"))
    extra = draw.choice(("", ", 'a': 1", ", " * 200, ")", "#"))
    header = f"{{'descr': {draw.choice(_KINDS)}, 'fortran_order': {order}, 'shape': {draw.choice(_SHAPES)}{extra}, }}"
    if draw.random() < 0.1:
        header = "{" + "(" * draw.choice((10, 100, 5000))
    packed = header.encode() + b" " * draw.randrange(64) + draw.choice((b"\n", b""))
    version = draw.choice((1, 1, 2, 3, 9))
    length = draw.choice((len(packed), len(packed), 0, 65535, 2**31)) if version > 1 else min(len(packed), 65535)
    start = b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<I", length)
    return start + packed + bytes(draw.choice((0, 24, 96, 1000)))


damage_npy = or_plain(lying)


def read(content, folder):
    array = load_array(put(folder, "a.npy", content))
    return array.shape, array.dtype, np.asarray(array[:1]) if array.ndim else None


def seeds():
    return [npy(np.ones((2, 3), np.float32)), npy(np.arange(5)), npy(np.zeros((0, 4)))]


def read_packed(content, folder):
    """The same bytes in a compressed stream and in an archive, as a matrix and as the ids beside one."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x.npy", seeds()[0])
        archive.writestr("image_ids.npy", content)
    paths = [
        put(folder, "a.npy", content),
        put(folder, "a.npy.gz", gzip.compress(content, 1)),
        put(folder, "a.npz", packed.getvalue()),
    ]
    errors = []
    for path in paths:
        try:
            open_matrix(str(path))
        except ValueError as error:
            errors.append(error)
    if errors:
        raise errors[-1]


def read_archive(content, folder):
    open_matrix(str(put(folder, "b.npz", content)))


def read_stream(content, folder):
    open_matrix(str(put(folder, "b.npy.gz", content)))


def archives():
    packed = io.BytesIO()
    np.savez_compressed(packed, x=np.ones((2, 3)), image_ids=np.array(["a", "b"]))
    plain = io.BytesIO()
    np.savez(plain, np.eye(3, dtype=np.float32))
    return [packed.getvalue(), plain.getvalue()]


READERS = (
    Reader("npy", seeds, read, damage_npy),
    Reader(
        "npy packed", lambda: [npy(np.ones((2, 3), np.float32)), npy(np.eye(2, 3, dtype=int))], read_packed, damage_npy
    ),
    Reader("npz", archives, read_archive),
    Reader("npy.gz", lambda: [gzip.compress(npy(np.ones((2, 3), np.float32)), mtime=0)], read_stream),
)
