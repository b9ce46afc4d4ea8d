"""Captions in JSON: Karpathy's files and COCO's."""

import gzip
import json

from tests.fuzz.damage import damage_json
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import imported, put


def karpathy():
    images = [
        {"filename": "1.jpg", "split": "train", "sentids": [0], "sentences": [{"raw": "A dog.", "sentid": 0}]},
        {"filename": "2.jpg", "split": "restval", "cocoid": 7, "filepath": "val2014", "sentences": [{"raw": "A cat."}]},
    ]
    plain = json.dumps({"images": images, "dataset": "flickr8k"}).encode()
    return [plain, gzip.compress(plain), b"\xef\xbb\xbf" + plain]


def coco():
    rows = [
        {"id": 1, "image_id": 42, "caption": "A dog."},
        {"caption_id": 2, "id": 2, "image_id": "x", "caption": "A cat."},
    ]
    whole = {"images": [{"id": 42, "file_name": "42.jpg"}, {"id": "x"}], "annotations": rows}
    return [json.dumps(whole).encode(), json.dumps(rows).encode(), gzip.compress(json.dumps(rows).encode())]


READERS = (
    Reader("karpathy", karpathy, lambda content, to: imported("karpathy", put(to, "k.json", content), to), damage_json),
    Reader("coco", coco, lambda content, to: imported("coco", put(to, "captions.json", content), to), damage_json),
)
