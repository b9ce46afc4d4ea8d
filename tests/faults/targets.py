"""Files and folders that must survive faults: how to write two versions of them, and how to read them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bcls._core.files import recover, replace_folder
from bcls.data.dataset import open_dataset
from bcls.data.records import Caption, Content, ImageRecord, write_dataset
from bcls.data.vocabulary import Vocabulary
from bcls.features.array_cache import ArrayCache
from bcls.labels.cache import ROWS, open_rows, read_manifest, write_cache
from bcls.losses import TripletLoss
from bcls.models import load
from bcls.models.folder import save_folder
from bcls.search.calibration import Calibration
from bcls.search.catalog import Catalog, Photo
from bcls.search.index import IndexManifest, read_index_manifest, write_index_manifest
from bcls.training.checkpoint import Learner, Progress, read_state, restore, write_checkpoint
from tests.models import factories as made
from tests.training.factories import TinyModel


def learner(seed=0):
    """A model with an optimizer after one step."""
    torch.manual_seed(seed)
    model = TinyModel(2)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return Learner(model, TripletLoss(), optimizer)


@dataclass
class Checkpoint:
    """The last checkpoint of a run, replaced by a later one."""

    name = "checkpoint of a run"
    folder: Path
    versions: list[Any] = field(default_factory=lambda: [learner(1), learner(2)])

    def write(self, version):
        progress = Progress(epoch=version, step=3, pending=[(1, {"loss": 0.5})])
        replace_folder(
            self.folder / "last", lambda new: write_checkpoint(new, self.versions[version], progress, {}, {})
        )

    def read(self):
        """Return the version that ``--resume`` would continue from, after checking that it is complete."""
        recover(self.folder / "last")
        found = learner(3)
        version = restore(self.folder / "last", found, read_state(self.folder / "last")).epoch
        expected = self.versions[version]
        same = zip(found.model.state_dict().values(), expected.model.state_dict().values(), strict=True)
        assert all(torch.equal(one, other) for one, other in same), "weights of neither version"
        for one, other in zip(found.model.parameters(), expected.model.parameters(), strict=True):
            moments, known = found.optimizer.state[one], expected.optimizer.state[other]
            assert all(torch.equal(moments[key], known[key]) for key in known), "optimizer state of neither version"
        return version


@dataclass
class IndexFile:
    """The manifest of an index."""

    name = "manifest of an index"
    folder: Path

    def _made(self, version):
        scores = Calibration([0.4, 0.6], [0.1, 0.5], "captions")
        return IndexManifest(str(version), ["/photos"], "photo", "0", 4, False, "faiss", "", None, {"text": scores})

    def write(self, version):
        write_index_manifest(self.folder, self._made(version))

    def read(self):
        found = read_index_manifest(self.folder)
        assert found == self._made(int(found.identity))
        return int(found.identity)


@dataclass
class SavedModel:
    """A model's folder."""

    name = "folder of a model"
    folder: Path
    versions: list[Any] = field(default_factory=lambda: [made.model("vsepp", seed=1), made.model("vsepp", seed=2)])

    def write(self, version):
        save_folder(self.versions[version], self.folder / "model")

    def read(self):
        found = load(self.folder / "model").state_dict()
        for version, model in enumerate(self.versions):
            if all(torch.equal(value, found[name]) for name, value in model.state_dict().items()):
                return version
        raise AssertionError("weights of neither version")


@dataclass
class Words:
    """A vocabulary."""

    name = "vocabulary"
    folder: Path

    def _made(self, version):
        return Vocabulary.build(["a dog runs", "a cat sleeps"][: version + 1], threshold=1)

    def write(self, version):
        self._made(version).write(self.folder / "vocab.json")

    def read(self):
        found = Vocabulary.read(self.folder / "vocab.json")
        return [self._made(0), self._made(1)].index(found)


@dataclass
class Photos:
    """The catalogue of an index; version 1 has one more photo."""

    name = "catalogue of an index"
    folder: Path

    def write(self, version):
        catalog = Catalog(self.folder / "catalog.sqlite")
        try:
            catalog.put([(Photo(f"{version}.jpg", "1:2", "0" * 64, 0.0, False), ["A dog."] * 40)], [])
        finally:
            catalog.close()

    def read(self):
        catalog = Catalog(self.folder / "catalog.sqlite", read_only=True)
        try:
            photos = catalog.stamps()
            assert set(photos) in ({"0.jpg"}, {"0.jpg", "1.jpg"})
            assert catalog.count("captions") == 40 * len(photos)
            return len(photos) - 1
        finally:
            catalog.close()


#: Version 0 exists when the fault occurs, while version 1 is written.
REPLACED = (Checkpoint, IndexFile, SavedModel, Words, Photos)


@dataclass
class Imported:
    """Import of a dataset."""

    name = "import of a dataset"
    folder: Path

    def write(self):
        images = tuple(ImageRecord(f"i{n}", "train") for n in range(3))
        captions = tuple(Caption(f"c{n}", f"i{n}", "A dog.", "train") for n in range(3))
        write_dataset(self.folder / "data", Content("made", images, captions))

    def is_whole(self):
        if not (self.folder / "data" / "manifest.json").exists():
            return False
        return len(open_dataset(self.folder / "data").captions) == 3


@dataclass
class Labels:
    """Embeddings of captions, computed block by block."""

    name = "embeddings of captions"
    folder: Path
    rows = np.arange(60, dtype=np.float16).reshape(12, 5)
    manifest = {"format": 1, "captions": 12}  # noqa: RUF012

    def write(self):
        cache = ArrayCache(self.folder / ROWS, 12, 3, self.manifest, restart=True)
        for number in cache.remaining:
            cache.write(number, self.rows[3 * number : 3 * number + 3])
        write_cache(cache, self.manifest)

    def is_whole(self):
        if read_manifest(self.folder) is None:
            return False
        np.testing.assert_array_equal(open_rows(self.folder, 12), self.rows)
        return True


@dataclass
class Regions:
    """Features of a split, computed block by block."""

    name = "features of a split"
    folder: Path
    rows = np.arange(64, dtype=np.float16).reshape(8, 8)

    def write(self):
        cache = ArrayCache(self.folder / "train.npy", 8, 2, {"images": "0"})
        for number in cache.remaining:
            cache.write(number, self.rows[2 * number : 2 * number + 2])
        cache.finish(lambda: None)

    def is_whole(self):
        if not (self.folder / "train.npy").exists():
            return False
        np.testing.assert_array_equal(np.load(self.folder / "train.npy"), self.rows)
        return True


#: Nothing exists when the fault occurs; the next run must complete everything.
MADE = (Imported, Labels, Regions)
