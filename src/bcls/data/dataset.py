"""Finds and reads the picture of each image, wherever the manifest says pictures are.

A dataset of images and captions in a folder.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from bcls._core.errors import check_choice, fail, shortened
from bcls._core.locks import ForkLock
from bcls.data.features import Features, open_features
from bcls.data.image_files import ImageStore, match_names, open_store
from bcls.data.images import MAX_PIXELS, decode
from bcls.data.records import (
    CAPTIONS,
    Caption,
    ImageRecord,
    Manifest,
    images_of,
    read_captions,
    read_images,
    read_manifest,
    read_quarantine,
)


class Library:
    """Picture files of a dataset. Stores are opened when first needed; threads may share it.

    Args:
        paths: The folders and archives, in the order that ``source`` of an image counts.
        images: All images. Those without a ``file`` are looked up by their id.
        moved: Where they are now, if they have moved; see :func:`places`.
    """

    def __init__(
        self, paths: tuple[Path, ...], images: tuple[ImageRecord, ...], moved: str | Path | None = None
    ) -> None:
        self._state = paths, images, moved
        self._paths = paths if moved is None else places(paths, Path(moved))
        self._lock = ForkLock()
        self._stores: dict[int, ImageStore] = {}
        self._found: dict[int, dict[str, str | None]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Library, self._state

    def read(self, image: ImageRecord) -> bytes:
        """Bytes of an image's file."""
        return self._store(image.source).read(self.file_of(image))

    def file_of(self, image: ImageRecord) -> str:
        """Name of an image's file in its store."""
        if image.file is not None:
            return image.file
        store = self._store(image.source)
        with self._lock:
            if image.source not in self._found:
                # Together with the images that have a file, so that none of theirs is taken.
                here = [one for one in self._state[1] if one.source == image.source]
                match = match_names([one.file or one.image_id for one in here], store.names())
                found = zip(here, match.files, strict=True)
                self._found[image.source] = {one.image_id: file for one, file in found if one.file is None}
            file = self._found[image.source][image.image_id]
        if file is None:
            raise FileNotFoundError(2, f"no file for image {image.image_id!r}", str(store.path))
        return file

    def _store(self, source: int) -> ImageStore:
        with self._lock:
            if source not in self._stores:
                if source >= len(self._paths):
                    expected = "a folder, zip or tar of images" if not self._paths else f"source {source} of the images"
                    fail(
                        "manifest.json",
                        expected,
                        "none",
                        "import the dataset with --images, or open it with images=...",
                    )
                try:
                    self._stores[source] = open_store(self._paths[source])
                except FileNotFoundError as error:
                    hint = "the images are gone; if they moved, open the dataset with images=..."
                    raise FileNotFoundError(2, hint, error.filename) from error
            return self._stores[source]


def places(paths: tuple[Path, ...], moved: Path) -> tuple[Path, ...]:
    """Where folders and archives are now that were at ``paths``.

    Args:
        paths: Where they were.
        moved: The folder that the archives now lie in, or else one place that holds all of their pictures.
    """
    if any((moved / path.name).is_file() for path in paths):
        return tuple(moved / path.name for path in paths)
    return (moved,) * max(1, len(paths))


@dataclass(frozen=True)
class Dataset:
    """Images and captions, all of a folder's or some of them; made by :func:`open_dataset`.

    Attributes:
        folder: Where it lies.
        manifest: What its manifest says.
        images: The images, in the order that rows of a similarity matrix have.
        captions: The captions, in the order that its columns have.
    """

    folder: Path
    manifest: Manifest
    images: tuple[ImageRecord, ...]
    captions: tuple[Caption, ...]
    _library: Library = field(repr=False, compare=False)
    _places: Mapping[str, tuple[str, int]] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.manifest.name

    @cached_property
    def image_ids(self) -> tuple[str, ...]:
        """Ids of the images, in order."""
        return tuple(image.image_id for image in self.images)

    @cached_property
    def texts(self) -> list[str]:
        """Texts of the captions, in order."""
        return [caption.text for caption in self.captions]

    @cached_property
    def image_of_caption(self) -> npt.NDArray[np.int64]:
        """``(C,)``: for each caption the number of its image, as in :attr:`image_ids`."""
        number = {image: index for index, image in enumerate(self.image_ids)}
        return np.array([number[caption.image_id] for caption in self.captions], dtype=np.int64)

    @cached_property
    def splits(self) -> dict[str, tuple[int, int]]:
        """Number of images and of captions in each split."""
        captions = Counter(caption.split for caption in self.captions)
        return {split: (count, captions[split]) for split, count in Counter(one.split for one in self.images).items()}

    @cached_property
    def split_sizes(self) -> dict[str, int]:
        """Number of images that each split has on disk, also where this is only a part of it."""
        return dict(Counter(split for split, _ in self._places.values()))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names that :meth:`features` knows."""
        return tuple(self.manifest.features)

    def split(self, name: str) -> "Dataset":
        """The images and captions of one split.

        Raises:
            ValueError: There is no such split.
        """
        check_choice("split", name, self.splits)
        return self._keep(lambda image: image.split == name)

    def of_images(self, image_ids: Iterable[str]) -> "Dataset":
        """Some of the images, in the dataset's order, with their captions."""
        wanted = set(image_ids)
        return self._keep(lambda image: image.image_id in wanted)

    def without_quarantined(self) -> "Dataset":
        """The dataset without what ``bcls data check`` found bad; all of it where no check was run.

        An image that thereby has no captions left goes as well.
        """
        bad = read_quarantine(self.folder)
        good = tuple(one for one in self.captions if one.caption_id not in bad.captions)
        bare = {one.image_id for one in self.captions} - {one.image_id for one in good}
        gone = bare.union(bad.images)
        return replace(self, captions=good)._keep(lambda image: image.image_id not in gone)

    def read_image(self, image_id: str, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
        """Read a picture, in mode RGB. Several threads may do so at once.

        Args:
            image_id: Its id.
            max_pixels: Pictures with more pixels are refused.

        Raises:
            ValueError: There is no such image, or its file is damaged.
            FileNotFoundError: Its file is not there.
        """
        return decode(self.read_bytes(image_id), self.file_of(image_id), max_pixels=max_pixels)

    def read_bytes(self, image_id: str) -> bytes:
        """Read a picture's file as it is."""
        return self._library.read(self._record(image_id))

    def file_of(self, image_id: str) -> str:
        """Name of a picture's file, inside the folder or archive that holds it."""
        return self._library.file_of(self._record(image_id))

    def features(self, name: str) -> Features:
        """Features of the images, mapped into memory; row ``i`` is that of image ``i``.

        Args:
            name: Which, of :attr:`feature_names`.

        Raises:
            ValueError: There are none of that name for these images, or their number disagrees with the images.
        """
        if name not in self.feature_names:
            there = ", ".join(repr(one) for one in self.feature_names) or "none"
            near = get_close_matches(name, self.feature_names, 1)
            make = f"make them with `bcls data features {self.folder} --name {name}`"
            remedy = f"did you mean {near[0]!r}? Or {make}" if near else make
            fail("features", f"the name of features of {self.folder} ({there})", repr(name), remedy)
        places = [self._places[image] for image in self.image_ids]
        return open_features(self.folder, name, dict(self.manifest.features[name]), self.split_sizes, places)

    @cached_property
    def _records(self) -> dict[str, ImageRecord]:
        return {image.image_id: image for image in self.images}

    def _record(self, image_id: str) -> ImageRecord:
        if image_id not in self._records:
            fail("image_id", f"one of the {len(self.images)} images", repr(image_id), "see `image_ids`")
        return self._records[image_id]

    def _keep(self, wanted: Callable[[ImageRecord], bool]) -> "Dataset":
        images = tuple(image for image in self.images if wanted(image))
        kept = {image.image_id for image in images}
        return replace(self, images=images, captions=tuple(one for one in self.captions if one.image_id in kept))


def open_dataset(folder: str | Path, *, images: str | Path | None = None) -> Dataset:
    """Open a dataset folder. Captions are read; pictures and features are opened when asked for.

    Args:
        folder: A folder with a ``manifest.json``, as ``bcls data import`` writes it.
        images: Where the pictures are now, if they have moved since the import.

    Returns:
        The dataset.

    Raises:
        ValueError: The folder is not a complete dataset; the message names the file and line and what to do.
        OSError: A file cannot be read.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    captions = read_captions(folder)
    listed = read_images(folder)
    records = images_of(captions) if listed is None else listed
    _check_captions(folder, captions, records)
    seen: Counter[str] = Counter()
    places = {}
    for record in records:
        places[record.image_id] = record.split, seen[record.split]
        seen[record.split] += 1
    library = Library(tuple(folder / one.path for one in manifest.images), records, images)
    dataset = Dataset(folder, manifest, records, captions, library, places)
    for split, stated in manifest.splits.items():
        if dataset.splits.get(split, (0, 0)) != stated:
            got = "{} and {}".format(*dataset.splits.get(split, (0, 0)))
            expected = shortened("{} images and {} captions in {!r}".format(*stated, split))
            fail(str(folder), expected, got, "import the dataset again")
    return dataset


def _check_captions(folder: Path, captions: tuple[Caption, ...], images: tuple[ImageRecord, ...]) -> None:
    splits = {image.image_id: image.split for image in images}
    for caption in captions:
        split = splits.get(caption.image_id)
        if split != caption.split:
            got = "no such image" if split is None else f"an image of split {split!r}"
            where = f"{folder / CAPTIONS}, caption {caption.caption_id[:60]!r}"
            fail(
                where,
                f"its image {caption.image_id[:60]!r} in split {caption.split[:60]!r}",
                got,
                "mend captions.jsonl or images.jsonl",
            )
