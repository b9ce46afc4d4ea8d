"""A dataset of images and captions, read from its folder."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

import bcls.data.records as records
from bcls._core.errors import check_choice, fail, quoted, shortened
from bcls._core.files import user_path
from bcls._core.locks import ForkLock
from bcls.data.features import Features, open_features
from bcls.data.image_files import ImageStore, match_names, open_store
from bcls.data.images import MAX_PIXELS, decode
from bcls.data.records import Caption, ImageRecord, Manifest


def open_dataset(folder: str | Path, *, images: str | Path | None = None) -> "Dataset":
    """Open a dataset folder. Captions are read at once; images and features are opened on first use.

    Args:
        folder: A folder with a ``manifest.json``, as written by ``bcls data import``.
        images: New location of the images if they have moved since the import.

    Returns:
        The dataset.

    Raises:
        ValueError: The folder is not a complete dataset; the message names the file and line and what to do.
        OSError: A file cannot be read.
    """
    folder = user_path(folder)
    manifest = records.read_manifest(folder)
    captions = records.read_captions(folder)
    listed = records.read_images(folder, captions)
    records.check_splits(str(folder / records.CAPTIONS), listed, captions)
    sources = tuple(folder / one.path for one in manifest.images)
    reader = ImageReader(sources if images is None else relocate(sources, user_path(images)), listed)
    dataset = Dataset(folder, manifest, listed, captions, reader)
    for split, stated in manifest.splits.items():
        counted = dataset.splits.get(split, (0, 0))
        if counted != stated:
            expected = shortened("{} images and {} captions in {!r}".format(*stated, split))
            fail(str(folder), expected, "{} and {}".format(*counted), "import the dataset again")
    return dataset


@dataclass(frozen=True)
class Dataset:
    """Images and captions, all of a folder or a part of them; created by :func:`open_dataset`.

    Attributes:
        folder: Folder of the dataset.
        manifest: Contents of its manifest.
        images: The images, in the order of the rows of a similarity matrix.
        captions: The captions, in the order of its columns.
    """

    folder: Path
    manifest: Manifest
    images: tuple[ImageRecord, ...]
    captions: tuple[Caption, ...]
    #: Reads the files of all images of the folder.
    _reader: "ImageReader" = field(repr=False, compare=False)

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
        """``(C,)``: index of each caption's image in :attr:`image_ids`."""
        number = {image: index for index, image in enumerate(self.image_ids)}
        return np.array([number[caption.image_id] for caption in self.captions], dtype=np.int64)

    @cached_property
    def splits(self) -> dict[str, tuple[int, int]]:
        """Number of images and of captions in each split."""
        captions = Counter(caption.split for caption in self.captions)
        return {split: (size, captions[split]) for split, size in Counter(one.split for one in self.images).items()}

    @cached_property
    def split_sizes(self) -> dict[str, int]:
        """Number of images of each split on disk, even if this is only a part of the dataset."""
        return dict(Counter(image.split for image in self._reader.images))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names accepted by :meth:`features`."""
        return tuple(self.manifest.features)

    @property
    def image_sources(self) -> tuple[Path, ...]:
        """Folders and archives that the images are read from."""
        return self._reader.sources

    def split(self, name: str) -> "Dataset":
        """Return the images and captions of one split.

        Raises:
            ValueError: There is no such split.
        """
        check_choice("split", name, self.splits)
        return self._keep(lambda image: image.split == name)

    def of_images(self, image_ids: Iterable[str]) -> "Dataset":
        """Return some of the images, in the dataset's order, with their captions."""
        wanted = set(image_ids)
        return self._keep(lambda image: image.image_id in wanted)

    def without_quarantined(self) -> "Dataset":
        """Return the dataset without the images and captions that ``bcls data check`` put into quarantine.

        An image without remaining captions is removed as well. If no check was run, nothing is removed.
        """
        bad = records.read_quarantine(self.folder)
        good = tuple(one for one in self.captions if one.caption_id not in bad.captions)
        uncaptioned = {one.image_id for one in self.captions} - {one.image_id for one in good}
        removed = uncaptioned.union(bad.images)
        return replace(self, captions=good)._keep(lambda image: image.image_id not in removed)

    def read_image(self, image_id: str, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
        """Read an image in mode RGB. This method is thread-safe.

        Args:
            image_id: Id of the image.
            max_pixels: Larger images raise an error.

        Raises:
            ValueError: There is no such image, or its file is damaged.
            FileNotFoundError: Its file does not exist.
        """
        return decode(self.read_bytes(image_id), self.file_of(image_id), max_pixels=max_pixels)

    def read_bytes(self, image_id: str) -> bytes:
        """Read the file of an image without decoding it."""
        return self._reader.read(self._record(image_id))

    def file_of(self, image_id: str) -> str:
        """Return the name of an image's file in its folder or archive."""
        return self._reader.file_of(self._record(image_id))

    def features(self, name: str) -> Features:
        """Open features of the images as memory maps; row ``i`` belongs to image ``i``.

        Args:
            name: One of :attr:`feature_names`.

        Raises:
            ValueError: These images have no features of that name, or the number of rows does not match.
        """
        command = f"bcls data features {quoted(self.folder)} --name {quoted(name)}"
        hint = f"extract them with `{command} --backbone BACKBONE --regions REGIONS`"
        check_choice("features", name, self.feature_names, f"the name of features of {self.folder}", hint)
        numbers: defaultdict[str, count[int]] = defaultdict(count)
        place = {image.image_id: (image.split, next(numbers[image.split])) for image in self._reader.images}
        positions = [place[image] for image in self.image_ids]
        return open_features(self.folder, name, self.manifest.features[name], self.split_sizes, positions)

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


class ImageReader:
    """Reads the image files of a dataset. Folders and archives are opened on first use; thread-safe.

    Args:
        sources: Folders and archives; ``source`` of an image is an index into them.
        images: All images. The files of those without ``file`` are found by the image id.
    """

    def __init__(self, sources: tuple[Path, ...], images: tuple[ImageRecord, ...]) -> None:
        self.sources = sources
        self.images = images
        self._lock = ForkLock()
        self._stores: dict[int, ImageStore] = {}
        self._matched: dict[int, dict[str, str | None]] = {}

    def read(self, image: ImageRecord) -> bytes:
        """Return the bytes of an image's file."""
        return self._store(image.source).read(self.file_of(image))

    def file_of(self, image: ImageRecord) -> str:
        """Return the name of an image's file in its source."""
        if image.file is not None:
            return image.file
        store = self._store(image.source)
        with self._lock:
            if image.source not in self._matched:
                # Images with a known file take part, so that their files are not matched to other images.
                here = [one for one in self.images if one.source == image.source]
                files = match_names([one.file or one.image_id for one in here], store.names()).files
                self._matched[image.source] = {one.image_id: file for one, file in zip(here, files, strict=True)}
            file = self._matched[image.source][image.image_id]
        if file is None:
            raise FileNotFoundError(2, f"no file for image {image.image_id!r}", str(store.path))
        return file

    def _store(self, source: int) -> ImageStore:
        with self._lock:
            if source not in self._stores:
                if source >= len(self.sources):
                    hint = "import the dataset with --images, or open it with images=..."
                    fail("manifest.json", f"image source {source}", f"{len(self.sources)} sources", hint)
                try:
                    self._stores[source] = open_store(self.sources[source])
                except FileNotFoundError as error:
                    hint = "the images are missing; if they have moved, correct their path in manifest.json, "
                    hint += "or in Python open the dataset with images=..."
                    raise FileNotFoundError(2, hint, error.filename) from error
            return self._stores[source]


def relocate(sources: tuple[Path, ...], moved: Path) -> tuple[Path, ...]:
    """Return the new paths of folders and archives that have moved.

    Args:
        sources: The old paths.
        moved: The folder that now contains the archives, or else a single source with all images.
    """
    if any((moved / path.name).is_file() for path in sources):
        return tuple(moved / path.name for path in sources)
    return (moved,) * max(1, len(sources))
