"""Small files that claim to be large or unpack to large ones are refused before memory is allocated."""

import gzip
import io
import json
import struct
import tarfile
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from bcls.data.features import load_array
from bcls.data.image_files import MAX_BYTES, open_store
from bcls.data.images import decode
from bcls.data.text_files import read_bytes, read_json
from bcls.models import load
from bcls.models.folder import save_folder
from tests.data.factories import add_to_tar, image_bytes
from tests.models import factories as made

MEGABYTE = 2**20


@pytest.fixture
def most():
    """Peak memory that Python allocates in a test, in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_gzip_bomb(tmp_path, most, monkeypatch):
    monkeypatch.setattr("bcls.data.text_files.MAX_BYTES", MEGABYTE)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(bytes(64 * MEGABYTE)))
    tracemalloc.reset_peak()
    with pytest.raises(ValueError, match="at most 1048576 bytes unpacked"):
        read_bytes(tmp_path / "a.json.gz")
    assert most() < 8 * MEGABYTE


@pytest.mark.parametrize("name", ["a.png", "a.txt"])
def test_zip_with_wrong_sizes(tmp_path, most, name):
    """Both directories of the zip state 10 bytes, but the member has 200 MB."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(200 * MEGABYTE))
    content = bytearray(buffer.getvalue())
    for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = content.find(mark) + place
        content[at : at + 4] = struct.pack("<I", 10)
    (tmp_path / "a.zip").write_bytes(content)
    tracemalloc.reset_peak()
    with pytest.raises(ValueError, match="expected a complete member"):
        open_store(tmp_path / "a.zip").read(name)
    assert most() < 8 * MEGABYTE


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_large_captions_in_an_archive(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("bcls.data.image_files.MAX_BYTES", 1000)
    path = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", bytes(2000))
    else:
        with tarfile.open(path, "w") as archive:
            add_to_tar(archive, "a.txt", bytes(2000))
    with pytest.raises(ValueError, match="at most 1000 bytes"):
        open_store(path).read("a.txt")
    assert MAX_BYTES > 1000


def test_tar_with_a_negative_size(tmp_path):
    """A negative size leads back to an earlier member; Python's reader would loop forever."""
    info = tarfile.TarInfo("a.png")
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[124:136] = b"\xff" * 10 + b"\xfc\x00"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    (tmp_path / "a.tar").write_bytes(bytes(head) * 3 + bytes(1024))
    with pytest.raises(ValueError, match=r"expected a (tar file|folder, a zip or an uncompressed tar)"):
        open_store(tmp_path / "a.tar").names()


@pytest.mark.parametrize("shape", ["(1000000000000, 1000)", "(4611686018427387904, 4)", "(9223372036854775807,)"])
def test_arrays_that_claim_to_be_large(tmp_path, most, shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(64))
    with pytest.raises(ValueError, match=r"an \.npy file with numbers"):
        load_array(tmp_path / "a.npy")
    assert most() < MEGABYTE


def test_array_header_of_gigabytes(tmp_path, most):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\2\0" + struct.pack("<I", 2**31) + b"{" * 100)
    with pytest.raises(ValueError, match=r"an \.npy file with numbers"):
        load_array(tmp_path / "a.npy")
    assert most() < MEGABYTE


def test_npz_is_not_an_array(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones(3))
    with pytest.raises(ValueError, match=r"an \.npy file with numbers"):
        load_array(tmp_path / "a.npz")


def png(width, height):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(9000, 9000), (60_000, 60_000), (2**31 - 1, 1)])
def test_images_that_claim_to_be_large(most, size):
    with pytest.raises(ValueError, match="at most 80000000 pixels"):
        decode(png(*size), "a.png")
    assert most() < 8 * MEGABYTE


@pytest.mark.parametrize(
    "content",
    [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", b"\xd7\xcd\xc6\x9a\0\0" + bytes(40)],
)
def test_formats_that_start_programs_are_not_opened(content):
    """Pillow passes EPS to Ghostscript, which executes it, and WMF to the system."""
    with pytest.raises(ValueError, match="bytes of something else"):
        decode(content, "a.jpg")


def test_16_bit_images_are_converted_in_place(most):
    buffer = io.BytesIO()
    Image.fromarray(np.full((3000, 3000), 40_000, np.uint16)).save(buffer, "PNG")
    tracemalloc.reset_peak()
    assert decode(buffer.getvalue(), "a.png").getpixel((0, 0)) == (155,) * 3
    assert most() < 9 * MEGABYTE * 6


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_json_that_is_deep_or_long(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"expected JSON, got (maximum recursion depth exceeded|Exceeds the limit)"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("change", [{"width": 10**6, "features": 10**6}, {"word_width": 10**12}, {"words": 2**62}])
def test_config_larger_than_its_weights(tmp_path, change):
    save_folder(made.model("vsepp"), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match="the sizes of the weights"):
        load(tmp_path / "model")


def test_complete_files_are_read(tmp_path):
    assert decode(image_bytes(), "a.png").size == (32, 24)
    save_folder(made.model("sgr"), tmp_path / "model")
    assert load(tmp_path / "model").config.name == "sgr"
