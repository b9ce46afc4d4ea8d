"""Zip and tar files of images, and tar files with captions."""

import io
import tarfile
import zipfile

from bcls.data.image_files import open_store
from tests.data.factories import add_to_tar, image_bytes
from tests.fuzz.damage import or_plain
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import imported, put

_NAMES = (
    "1.png",
    "a/2.png",
    "../3.png",
    "/4.png",
    "C:\\5.png",
    "a\\..\\..\\6.png",
    "7.png/",
    "\0.png",
    "ü.png",
    "8.txt",
    "x" * 300 + ".png",
)
_SMALL = image_bytes(size=(4, 4))


def zips():
    made = []
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", kind) as archive:
            for name in ("1.png", "a/2.png", "1.txt"):
                archive.writestr(name, _SMALL)
        made.append(buffer.getvalue())
    return made


def odd_zip(draw, seeds):
    """Return a zip with odd names and wrong sizes and offsets, in both of its directories."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for _ in range(draw.randint(0, 3)):
            info = zipfile.ZipInfo(draw.choice(_NAMES))
            info.compress_type = archive.compression
            info.external_attr = draw.choice((0, 0o100644 << 16, 0o120777 << 16, 0o060644 << 16, 0o010644 << 16))
            archive.writestr(info, draw.choice((_SMALL, b"", bytes(100_000))))
    content = bytearray(buffer.getvalue())
    for mark, fields in (
        (b"PK\x01\x02", (6, 8, 10, 16, 20, 24, 28, 30, 32, 42)),
        (b"PK\x03\x04", (4, 6, 8, 14, 18, 22, 26, 28)),
        (b"PK\x05\x06", (8, 10, 12, 16, 20)),
    ):
        at = content.find(mark)
        if at >= 0 and draw.random() < 0.5:
            size = draw.choice((1, 2, 4))
            value = draw.choice((0, 1, 12, 14, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF)) & (256**size - 1)
            content[at + (place := draw.choice(fields)) : at + place + size] = value.to_bytes(size, "little")
    return bytes(content)


def tars():
    made = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
            add_to_tar(archive, "0001.png", _SMALL)
            add_to_tar(archive, "0001.txt", b"A dog.")
            add_to_tar(archive, "b/0002.png", _SMALL)
            add_to_tar(archive, "b/0002.json", b'{"captions": ["A cat.", "A mat."]}')
            if form != tarfile.USTAR_FORMAT:
                add_to_tar(archive, "long/" * 40 + "ü.png", _SMALL)
        made.append(buffer.getvalue())
    return made


def odd_tar(draw, seeds):
    """Return a tar with odd names, types and sizes, and correct checksums."""
    buffer = io.BytesIO()
    kinds = (b"0", b"\0", b"1", b"2", b"3", b"5", b"6", b"7", b"L", b"K", b"S", b"x", b"g", b"Z")
    for _ in range(draw.randint(1, 4)):
        info = tarfile.TarInfo(draw.choice(_NAMES).rstrip("\0")[:90])
        body = draw.choice(
            (_SMALL, b"A dog.", b"20 size=99999999999\n", b"22 GNU.sparse.major=1\n", b"11 size=-1\n", b"[" * 4000)
        )
        info.size, info.type = len(body), draw.choice(kinds)
        head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        if draw.random() < 0.4:
            size = draw.choice(
                (
                    b"77777777777\0",
                    b"-1\0",
                    b"\x80" + bytes(10) + b"\1",
                    b"\xff" * 12,
                    b"\x80\x7f" + b"\xff" * 10,
                    b"9x8\0",
                    b"\xff" * 10 + b"\xfc\0",
                )
            )
            head[124 : 124 + len(size)] = size
            head[148:156] = b" " * 8
            head[148:156] = b"%06o\0 " % sum(head)
        buffer.write(head + body + bytes(-len(body) % 512))
    return buffer.getvalue() + bytes(1024 * draw.randint(0, 2))


def read(ending, content, folder):
    store = open_store(put(folder, f"a.{ending}", content))
    names = store.names()
    for name in (*names[:3], "1.txt", "../1.png"):
        try:
            store.read(name)
        except FileNotFoundError:
            continue
        except ValueError as error:  # what is in one member is no matter of the others
            if ": expected " not in str(error):
                raise


def read_webdataset(content, folder):
    dataset = imported("webdataset", put(folder, "train.tar", content), folder)
    dataset.read_bytes(dataset.image_ids[0])


READERS = (
    Reader("zip", zips, lambda content, to: read("zip", content, to), or_plain(odd_zip)),
    Reader("tar", tars, lambda content, to: read("tar", content, to), or_plain(odd_tar)),
    Reader("webdataset", tars, read_webdataset, or_plain(odd_tar)),
)
