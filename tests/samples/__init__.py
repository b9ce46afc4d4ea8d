"""The folder of dataset files for the tests: BCLS_DATA, or small samples in the same formats."""

import atexit
import gzip
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
#: Photos with a common topic are rated as somewhat related.
TOPICS = {
    "space": ("astronaut", "galaxies", "rocket"),
    "people": ("astronaut", "camera"),
    "animals": ("cat", "horse"),
    "ground": ("brick", "grass", "gravel"),
    "small things": ("coffee", "coins"),
}


def captions_of_photos():
    """The captions by photo; tokens are separated by spaces."""
    found = {}
    for line in (_HERE / "captions.txt").read_text(encoding="utf-8").splitlines():
        photo, caption = line.split("\t")
        found.setdefault(photo, []).append(caption)
    return found


def relation(one, other):
    """2 for the same photo, 1 for a common topic, otherwise 0."""
    return 2 if one == other else int(any(one in topic and other in topic for topic in TOPICS.values()))


def write_samples(folder):
    """Write the samples as Flickr8k, Flickr30k, COCO and CxC publish their files."""
    photos = captions_of_photos()
    for name in ("flickr8k", "flickr30k", "coco", "cxc"):
        (folder / name).mkdir()
    _write(folder / "flickr8k/dataset_flickr8k.json.gz", json.dumps(_karpathy(photos, "flickr8k", spaces=True)))
    _write(folder / "flickr30k/dataset_flickr30k.json.gz", json.dumps(_karpathy(photos, "flickr30k", spaces=False)))
    with zipfile.ZipFile(folder / "flickr8k/images_224.zip", "w") as archive:
        for photo in photos:
            archive.write(_HERE / "photos" / f"{photo}.webp", f"images/{photo}.webp")
        archive.write(_HERE / "photos" / "gravel.webp", "images/without-captions.webp")
    expert, crowd = [], []
    for (one, captions), other in product(photos.items(), photos):
        marks = [(1, 1, 2), (3, 3, 4), (4, 4, 3)][relation(one, other)]
        yes = [0, 1, 3][relation(one, other)]
        caption = f"{one}.jpg#{len(captions) - 1}"
        expert.append("\t".join([f"{other}.jpg", caption, *map(str, marks)]))
        crowd.append("\t".join([f"{other}.jpg", caption, str(yes / 3), str(yes), str(3 - yes)]))
    _write(folder / "flickr8k/ExpertAnnotations.txt", "\n".join(expert) + "\n")
    _write(folder / "flickr8k/CrowdFlowerAnnotations.txt", "\n".join(crowd) + "\n")
    for data, names, vocabulary in (("flickr30k", ("dev", "test"), "f30k"), ("coco", ("dev", "testall"), "coco")):
        for split, name in zip(("val", "test"), names, strict=True):
            chosen = [photo for number, photo in enumerate(photos) if _split(number) == split]
            _write(folder / data / f"{name}_caps.txt.gz", "\n".join(c for one in chosen for c in photos[one]) + "\n")
            ids = [str(list(photos).index(photo)) for photo in chosen for _ in photos[photo]]
            _write(folder / data / f"{name}_ids.txt.gz", "\n".join(ids) + "\n")
        known = [one for number, one in enumerate(photos) if _split(number) != "test"]
        counts = Counter(word for one in known for caption in photos[one] for word in caption.lower().split())
        words = ["<pad>", "<start>", "<end>", "<unk>", *(word for word, count in counts.items() if count >= 4)]
        content = {
            "word2idx": {w: n for n, w in enumerate(words)},
            "idx2word": dict(enumerate(words)),
            "idx": len(words),
        }
        _write(folder / data / f"{vocabulary}_precomp_vocab.json.gz", json.dumps(content))
    _write_cxc(folder, photos)
    return folder


def _write_cxc(folder, photos):
    captions = [(photo, text) for photo in photos for text in photos[photo]]
    rows = [
        {"caption_id": 1000 + number, "image_id": 100 + list(photos).index(photo), "caption": text}
        for number, (photo, text) in enumerate(captions)
    ]
    _write(folder / "coco/captions_karpathy_test5k.json.gz", json.dumps(rows))
    images = {photo: f"COCO_val2014_{100 + number:012d}.jpg" for number, photo in enumerate(photos)}
    some = [(photo, f"COCO_val2014:sentid:{1000 + 5 * n + k}") for n, photo in enumerate(photos) for k in (0, 3)]
    items = {"sis": (images.items(), images.items()), "sits": (some, images.items()), "sts": (some, some)}
    columns = {"sis": "image1,image2", "sits": "caption,image", "sts": "caption1,caption2"}
    for name, (firsts, seconds) in items.items():
        lines = [
            f"{first},{second},{[0.4, 2.6, 4.8][relation(one, other)]},made"
            for (one, first), (other, second) in product(firsts, seconds)
            if first != second
        ]
        _write(
            folder / f"cxc/{name}_test.csv.gz", "\n".join([f"{columns[name]},agg_score,sampling_method", *lines]) + "\n"
        )


def _split(number):
    return ("train", "train", "val", "test")[number % 4]


def _karpathy(photos, name, *, spaces):
    images = []
    for number, (photo, captions) in enumerate(photos.items()):
        sentences = [
            {
                "tokens": re.findall(r"\w+", caption.lower().replace("'", "")),
                "raw": caption if spaces else re.sub(r" ([.,])", r"\1", caption),
                "imgid": number,
                "sentid": 5 * number + turn,
            }
            for turn, caption in enumerate(captions)
        ]
        ids = [one["sentid"] for one in sentences]
        entry = {"sentids": ids, "imgid": number, "sentences": sentences, "split": _split(number)}
        images.append({**entry, "filename": f"{photo}.jpg"})
    return {"images": images, "dataset": name}


def _write(path, text):
    content = text.encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


#: Whether the real files are there; otherwise the tests run on the samples.
FULL = bool(os.environ.get("BCLS_DATA"))
needs_full = pytest.mark.skipif(not FULL, reason="needs the published files: set BCLS_DATA to their folder")
if FULL:
    DATA = Path(os.environ["BCLS_DATA"])
else:
    DATA = write_samples(Path(tempfile.mkdtemp(prefix="bcls-samples-")))
    atexit.register(shutil.rmtree, DATA, ignore_errors=True)


def expect(full, sample):
    """The expected value on the real files or on the samples."""
    return full if FULL else sample
