"""The files of a dataset folder."""

import json
from functools import partial

import numpy as np

from bcls.data.dataset import open_dataset
from tests.data.factories import caption_rows, image_bytes, write_lines
from tests.fuzz.damage import damage_json
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import put

_MANIFEST = {
    "format": "bcls-dataset",
    "version": 1,
    "name": "made",
    "splits": {"train": {"images": 2, "captions": 4}},
    "images": [{"path": "images", "bytes": 7, "sha256": "0"}],
    "features": {
        "made": {split: {"path": f"{split}.npy", "counts": f"{split}_counts.npy"} for split in ("train", "val")}
    },
    "sha256": {"captions.jsonl": "0"},
}


def read(name, content, folder):
    """Open the dataset and use everything that is in it."""
    place = folder / f"with {name}"
    if not place.exists():
        (place / "images").mkdir(parents=True)
        rows = caption_rows()
        write_lines(place / "captions.jsonl", rows)
        write_lines(
            place / "images.jsonl",
            [{"image_id": f"i{n}", "split": rows[2 * n]["split"], "file": f"i{n}.png"} for n in range(4)],
        )
        put(place, "manifest.json", json.dumps(_MANIFEST).encode())
        put(place, "quarantine.json", b'{"images": {"i1": "damaged"}, "captions": {}}')
        for split, count in (("train", 2), ("val", 1)):
            np.save(place / f"{split}.npy", np.ones((count, 3, 2), np.float32))
            np.save(place / f"{split}_counts.npy", np.full(count, 2))
        for number in range(4):
            put(place / "images", f"i{number}.png", image_bytes(size=(4, 4)))
    if name == "captions.parquet":
        (place / "captions.jsonl").unlink(missing_ok=True)
    put(place, name, content)
    dataset = open_dataset(place).without_quarantined()
    for features in dataset.feature_names:
        for split in dataset.manifest.features[features]:
            if split in dataset.splits:
                rows = dataset.split(split).features(features)
                rows.take([0])
                rows.regions(0)
    if dataset.images:
        dataset.read_image(dataset.image_ids[0])


def manifest():
    return [json.dumps(_MANIFEST).encode(), b'{"format": "bcls-dataset", "version": 1}']


def lines():
    return ["".join(json.dumps(row) + "\n" for row in caption_rows()).encode()]


def images():
    splits = ("train", "train", "val", "test")
    rows = [{"image_id": f"i{n}", "split": splits[n], "file": f"i{n}.png", "source": 0} for n in range(4)]
    return ["".join(json.dumps(row) + "\n" for row in rows).encode()]


def counts():
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.full(2, 2))
    return [buffer.getvalue()]


def parquet():
    import pyarrow
    from pyarrow import parquet

    made = []
    for compression in ("NONE", "snappy", "zstd"):
        buffer = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.Table.from_pylist(caption_rows()), buffer, compression=compression)
        made.append(buffer.getvalue().to_pybytes())
    return made


READERS = (
    Reader("dataset manifest", manifest, partial(read, "manifest.json"), damage_json),
    Reader("dataset captions", lines, partial(read, "captions.jsonl"), damage_json),
    Reader("dataset images", images, partial(read, "images.jsonl"), damage_json),
    Reader("dataset counts", counts, partial(read, "train_counts.npy")),
    Reader(
        "quarantine",
        lambda: [b'{"images": {"i1": "x"}, "captions": {"i2#0": "y"}}'],
        partial(read, "quarantine.json"),
        damage_json,
    ),
    Reader("parquet", parquet, partial(read, "captions.parquet")),
)
