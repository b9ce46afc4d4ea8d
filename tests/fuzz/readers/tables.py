"""Captions in tables: CSV, TSV, Flickr's token files and JSON lines."""

import json
from functools import partial

from tests.data.factories import image_bytes
from tests.fuzz.damage import damage_json
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import imported, put

_NAMES = ("1.png", "2.png")


def read(ending, content, folder):
    source = folder / "photos"
    for name in _NAMES:
        if not (source / name).exists():
            put(source, name, image_bytes(size=(8, 8)))
    return imported("folder", source, folder, captions=str(put(folder, f"captions.{ending}", content)))


def csv_files():
    return [
        b'image,caption,split\n1.png,"A dog, running.",train\n2.png,A cat,test\n',
        b"\xef\xbb\xbffile_name|caption_id|text\r\n1.png|a|A dog\r\n2.png|b|A cat\r\n",
    ]


def jsonl():
    rows = [{"image": "1.png", "captions": ["A dog.", "A ball."]}, {"image": "2.png", "text": "A cat", "split": "val"}]
    return ["".join(json.dumps(row) + "\n" for row in rows).encode()]


READERS = (
    Reader("csv", csv_files, partial(read, "csv")),
    Reader("tsv", lambda: [b"image\tcaption\n1.png\tA dog\n2.png\tA cat\n"], partial(read, "tsv")),
    Reader("flickr tokens", lambda: [b"1.png#0\tA dog .\n1.png#1\tA ball .\n2.png#0\tA cat .\n"], partial(read, "txt")),
    Reader("caption lines", jsonl, partial(read, "jsonl"), damage_json),
)
