"""Features of images in ``.npy`` files, mapped into memory and read by the image's place in a dataset."""

import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail, reason_of
from bcls._core.files import reserve
from bcls.data.records import FeatureFile

Array = npt.NDArray[Any]
#: Bytes of a header; numpy refuses longer ones too, but reads them first.
_LONGEST_HEADER = 10_000
#: What numpy raises over a damaged header, which it reads as Python's literals.
_DAMAGE = (
    ValueError,
    EOFError,
    OverflowError,
    TypeError,
    SyntaxError,
    RecursionError,
    MemoryError,
    tokenize.TokenError,
)


@dataclass(frozen=True)
class Features:
    """Rows of one or more feature files, one for each image of a dataset, in the order of its images.

    Attributes:
        arrays: The files, mapped into memory.
        counts: For each file the number of real regions in each row, or ``None`` where all are real.
        file: For each image, which of ``arrays`` holds its row.
        row: For each image, the row of the whole picture.
        views: Views that every image has: the whole picture, and random ones in the rows behind it.
    """

    arrays: tuple[Array, ...]
    counts: tuple[Array | None, ...]
    file: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    views: int = 1

    def __len__(self) -> int:
        return len(self.row)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of images, then the shape of one image's features."""
        return (len(self), *self.arrays[0].shape[1:])

    def __getitem__(self, image: int) -> Array:
        """Features of one image, as a view into its file."""
        array: Array = self.arrays[self.file[image]][self.row[image]]
        return array

    def regions(self, image: int, view: int = 0) -> int | None:
        """How many of the image's regions are real and not padding; ``None`` where the file does not say."""
        counts = self.counts[self.file[image]]
        return None if counts is None else int(counts[self.row[image] + self._checked(view)])

    def take(
        self, images: Sequence[int] | npt.NDArray[np.int64], views: Sequence[int] | npt.NDArray[np.int64] | int = 0
    ) -> Array:
        """Features of several images, copied into one array; only their rows are read.

        Args:
            images: Numbers of the images.
            views: Which view of them, one for all or one for each; 0 is the whole picture.

        Raises:
            ValueError: There are no such views.
        """
        places = np.asarray(images, dtype=np.int64)
        wanted = self._checked(views)
        if wanted.shape not in {(), places.shape}:
            fail("views", f"one, or one for each of {len(places)} images", f"shape {wanted.shape}", "0 is the whole")
        rows = self.row[places] + wanted
        taken = np.empty((len(places), *self.shape[1:]), dtype=self.arrays[0].dtype)
        for number, array in enumerate(self.arrays):
            chosen = np.flatnonzero(self.file[places] == number)
            taken[chosen] = array[rows[chosen]]
        return taken

    def _checked(self, views: Sequence[int] | npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
        """Numbers of views, which must not reach into the rows of the next image."""
        wanted = np.asarray(views, dtype=np.int64)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < self.views:
            got = f"{wanted.min()} to {wanted.max()}" if wanted.ndim else wanted
            fail("views", f"numbers from 0 to {self.views - 1}", got, "0 is the whole picture, which all have")
        return wanted


def open_features(
    folder: Path, name: str, files: dict[str, FeatureFile], sizes: dict[str, int], places: Sequence[tuple[str, int]]
) -> Features:
    """Map feature files into memory.

    Args:
        folder: The dataset's folder, which relative paths start from.
        name: Name of the features, for messages.
        files: A file for each split.
        sizes: Number of images that each split has on disk.
        places: Split of each wanted image and its number in that split.

    Raises:
        ValueError: A split has no file, a file is no array, or its rows disagree with the images.
    """
    # No images have a shape too: that of the first file.
    splits = list(dict.fromkeys(split for split, _ in places)) or [split for split in files if split in sizes][:1]
    missing = [split for split in splits if split not in files]
    if missing or not splits:
        fail(
            f"features {name!r}",
            f"a file for split {missing[0]!r}" if missing else "a file for a split of the dataset",
            f"files for {', '.join(files) or 'none'}",
            "ask for one split at a time, or import the features of this one",
        )
    arrays = tuple(_open_rows(folder, files[split], sizes[split]) for split in splits)
    if len({array.shape[1:] for array in arrays}) > 1:
        got = ", ".join(f"{split} {array.shape[1:]}" for split, array in zip(splits, arrays, strict=True))
        fail(f"features {name!r}", "one shape for an image", got, "ask for one split at a time")
    counts = tuple(
        _open_counts(folder / file.counts, array) if (file := files[split]).counts else None
        for split, array in zip(splits, arrays, strict=True)
    )
    number = {split: index for index, split in enumerate(splits)}
    row = [place * files[split].every for split, place in places]
    return Features(
        arrays,
        counts,
        np.array([number[split] for split, _ in places], np.int64),
        np.array(row, dtype=np.int64),
        min((files[split].views for split in splits), default=1),
    )


def _open_rows(folder: Path, file: FeatureFile, images: int) -> Array:
    path = folder / file.path
    array = load_array(path)
    if array.ndim < 2 or len(array) != images * file.every or not array.size:
        rows = f"{images} images" + (f" x {file.every}" if file.every > 1 else "")
        fail(str(path), f"one row for each of {rows}", f"shape {array.shape}", "import the features again")
    return array


def _open_counts(path: Path, rows: Array) -> Array:
    counts = load_array(path)
    if counts.shape != rows.shape[:1] or counts.dtype.kind not in "iu":
        got = f"shape {counts.shape} of {counts.dtype}"
        fail(str(path), f"a whole number for each of {len(rows)} rows", got, "import the features again")
    if counts.min(initial=0) < 0 or counts.max(initial=0) > rows.shape[1]:
        got = f"{counts.min()} to {counts.max()}"
        fail(str(path), f"numbers of regions from 0 to {rows.shape[1]}", got, "import the features again")
    return counts


def new_array(path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> "np.memmap[tuple[int, ...], np.dtype[Any]]":
    """Make an ``.npy`` file of zeros, mapped into memory, with all of its room on the disk taken.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    array = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), shape)
    reserve(path)
    return array


def load_array(path: Path) -> Array:
    """Map an ``.npy`` file into memory.

    Raises:
        ValueError: It is no array of numbers.
    """
    with path.open("rb") as file:
        start = file.read(12)
    # A header of gigabytes is not even looked at, and neither is an archive, which numpy would open as well.
    length = int.from_bytes(start[8:10] if start[6:7] == b"\x01" else start[8:12], "little")
    if not start.startswith(b"\x93NUMPY") or length > _LONGEST_HEADER:
        fail(str(path), "an .npy file with numbers", "something else", "copy or make it again")
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _DAMAGE as error:
        fail(str(path), "an .npy file with numbers", f"something else ({reason_of(error)})", "copy or make it again")
    if array.dtype.kind not in "biuf":
        fail(str(path), "an .npy file with numbers", f"dtype {str(array.dtype)[:60]}", "save it as float32")
    return array
