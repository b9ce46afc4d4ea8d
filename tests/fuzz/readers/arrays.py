"""Headers of ``.npy`` files: shapes that lie, kinds that run code, text that is no header."""

import io
import struct

import numpy as np

from bcls.data.features import load_array
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
    """A file whose header says something else than what follows."""
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


READERS = (
    Reader(
        "npy", lambda: [npy(np.ones((2, 3), np.float32)), npy(np.arange(5)), npy(np.zeros((0, 4)))], read, damage_npy
    ),
)
