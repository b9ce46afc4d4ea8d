"""An index: its manifest, its catalogue and its rows."""

import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np

from bcls.search.calibration import Calibration
from bcls.search.catalog import Catalog, Photo
from bcls.search.engine import VectorRow
from bcls.search.index import FILE, IndexManifest, open_engine, read_index_manifest, write_index_manifest
from tests.fuzz.damage import damage_json
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import put


@cache
def whole():
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        scores = Calibration([0.4, 0.6], [0.1, 0.5], "captions")
        write_index_manifest(
            place, IndexManifest("a", ["/photos"], "photo", "0" * 64, 4, False, "faiss", "", None, {"text": scores})
        )
        catalog = Catalog(place / "catalog.sqlite")
        catalog.put([(Photo(f"{n}.jpg", "1:2", "0", 1.5, True, 1.0, 2.0), ["A dog."]) for n in range(3)], [])
        catalog.close()
        engine = open_engine("faiss", place / "photos", "", "", 4)
        engine.add([VectorRow(n + 1, np.eye(4, dtype=np.float32)[n], 1.5, f"{n}.jpg", ("dog",)) for n in range(3)])
        engine.finish()
        engine.close()
        return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def cut(draw, seeds):
    """Truncate the file. Other damage is not tested, since faiss trusts its own files."""
    content = draw.choice(seeds)
    return content[: draw.randrange(len(content))]


def only(name):
    return [content for path, content in whole().items() if path.startswith(name)]


def read(name, content, folder):
    for other, kept in whole().items():
        put(folder, other, content if other.startswith(name) else kept)
    if name == FILE:
        read_index_manifest(folder)
        return
    if name == "catalog.sqlite":
        catalog = Catalog(folder / name, read_only=True)
        try:
            catalog.photos(catalog.numbers().tolist())
            catalog.captions_of(catalog.numbers().tolist())
            catalog.stamps()
        finally:
            catalog.close()
        return
    engine = open_engine("faiss", folder / "photos", "", "", 4, read_only=True)
    try:
        engine.search(np.eye(4, dtype=np.float32)[:1], 2)
        engine.vectors(engine.numbers().tolist())
    finally:
        engine.close()


READERS = (
    Reader("index manifest", lambda: only(FILE), partial(read, FILE), damage_json),
    Reader("index catalogue", lambda: only("catalog.sqlite"), partial(read, "catalog.sqlite")),
    Reader("index rows", lambda: only("photos/rows.sqlite"), partial(read, "photos/rows.sqlite")),
    Reader("index faiss", lambda: only("photos/vectors-"), partial(read, "photos/vectors-"), cut),
)
