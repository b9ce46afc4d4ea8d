"""Features of images in ``.npy`` files, opened as memory maps and read by the position of the image in a dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail, refuse_damage
from bcls._core.files import reserve
from bcls.data.records import FeatureFile

Array = npt.NDArray[Any]
Indices = Sequence[int] | npt.NDArray[np.int64]
#: Maximum length of a header in bytes. numpy refuses longer ones too, but reads them first.
_MAX_HEADER = 10_000
#: Errors of numpy for a damaged header, which it parses as Python literals.
_DAMAGE = (ValueError, EOFError, OverflowError, TypeError, SyntaxError, RecursionError, MemoryError, TokenError)
_AGAIN = "extract or import the features again"


@dataclass(frozen=True)
class Features:
    """Rows of one or more feature files, one for each image of a dataset, in the order of its images.

    Attributes:
        arrays: The files as memory maps.
        counts: For each file the number of valid regions in each row, or ``None`` if all are valid.
        file: For each image, the index into ``arrays`` of the file with its row.
        row: For each image, the row of the whole image.
        views: Number of views of every image: the whole image, and random crops in the rows after it.
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
        """Return the features of one image, as a view into its file."""
        array: Array = self.arrays[self.file[image]][self.row[image]]
        return array

    def regions(self, image: int, view: int = 0) -> int | None:
        """Return how many of the image's regions are valid and not padding; ``None`` if the file has no counts."""
        counts = self.counts[self.file[image]]
        return None if counts is None else int(counts[self.row[image] + self._check_views(view)])

    def take(self, images: Indices, views: Indices | int = 0) -> Array:
        """Copy the features of several images into one array; only their rows are read.

        Args:
            images: Indices of the images.
            views: View of each image, one for all or one per image; 0 is the whole image.

        Raises:
            ValueError: There are no such views.
        """
        indices = np.asarray(images, dtype=np.int64)
        wanted = self._check_views(views)
        if wanted.shape not in {(), indices.shape}:
            fail("views", f"one, or one for each of {len(indices)} images", f"shape {wanted.shape}", "pass 0 for all")
        rows = self.row[indices] + wanted
        taken = np.empty((len(indices), *self.shape[1:]), dtype=self.arrays[0].dtype)
        for number, array in enumerate(self.arrays):
            chosen = np.flatnonzero(self.file[indices] == number)
            taken[chosen] = array[rows[chosen]]
        return taken

    def _check_views(self, views: Indices | int) -> npt.NDArray[np.int64]:
        wanted = np.asarray(views, dtype=np.int64)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < self.views:
            got = f"{wanted.min()} to {wanted.max()}" if wanted.ndim else wanted
            fail("views", f"numbers from 0 to {self.views - 1}", got, "0 is the whole image")
        return wanted


def open_features(
    folder: Path,
    name: str,
    files: Mapping[str, FeatureFile],
    sizes: Mapping[str, int],
    positions: Sequence[tuple[str, int]],
) -> Features:
    """Open feature files as memory maps.

    Args:
        folder: Folder of the dataset, which relative paths start from.
        name: Name of the features, for error messages.
        files: A file for each split.
        sizes: Number of images that each split has on disk.
        positions: Split of each wanted image and its number in that split.

    Raises:
        ValueError: A split has no file, a file is not an array, or its rows do not match the images.
    """
    # Without images, the first file defines the shape.
    splits = list(dict.fromkeys(split for split, _ in positions)) or [split for split in files if split in sizes][:1]
    missing = [split for split in splits if split not in files]
    if missing or not splits:
        expected = f"a file for split {missing[0]!r}" if missing else "a file for a split of the dataset"
        got = f"files for {', '.join(files) or 'none'}"
        fail(f"features {name!r}", expected, got, "select a split that has them, or extract or import the others")
    arrays, counts = zip(*(_open_file(folder, files[split], sizes[split]) for split in splits), strict=True)
    if len({array.shape[1:] for array in arrays}) > 1:
        got = ", ".join(f"{split} {array.shape[1:]}" for split, array in zip(splits, arrays, strict=True))
        fail(f"features {name!r}", "the same shape in all splits", got, "select one split at a time")
    return Features(
        arrays,
        counts,
        np.array([splits.index(split) for split, _ in positions], dtype=np.int64),
        np.array([number * files[split].every for split, number in positions], dtype=np.int64),
        min((files[split].views for split in splits), default=1),
    )


def _open_file(folder: Path, file: FeatureFile, images: int) -> tuple[Array, Array | None]:
    """Open the rows of a file, and the numbers of their valid regions if the file has them."""
    path = folder / file.path
    array = load_array(path)
    if array.ndim < 2 or len(array) != images * file.every or not array.size:
        rows = f"{images} images" + (f" x {file.every}" if file.every > 1 else "")
        fail(str(path), f"one row for each of {rows}", f"shape {array.shape}", _AGAIN)
    if file.counts is None:
        return array, None
    path = folder / file.counts
    counts = load_array(path)
    if counts.shape != array.shape[:1] or counts.dtype.kind not in "iu":
        got = f"shape {counts.shape} of {counts.dtype}"
        fail(str(path), f"an integer for each of {len(array)} rows", got, _AGAIN)
    if counts.min(initial=0) < 0 or counts.max(initial=0) > array.shape[1]:
        got = f"{counts.min()} to {counts.max()}"
        fail(str(path), f"numbers of regions from 0 to {array.shape[1]}", got, _AGAIN)
    return array, counts


def new_array(path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> "np.memmap[tuple[int, ...], np.dtype[Any]]":
    """Create an ``.npy`` file of zeros as a memory map, with its disk space reserved.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    array = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), shape)
    reserve(path)
    return array


def load_array(path: Path) -> Array:
    """Open an ``.npy`` file as a memory map.

    Raises:
        ValueError: It is not an array of numbers.
    """
    with path.open("rb") as file:
        start = file.read(12)
    # Headers of gigabytes are refused before they are read, and so are archives, which numpy would open as well.
    length = int.from_bytes(start[8:10] if start[6:7] == b"\x01" else start[8:12], "little")
    if not start.startswith(b"\x93NUMPY") or length > _MAX_HEADER:
        fail(str(path), "an .npy file with numbers", "something else", "copy or create it again")
    with refuse_damage(str(path), "an .npy file with numbers", "copy or create it again", *_DAMAGE):
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype.kind not in "biuf":
        fail(str(path), "an .npy file with numbers", f"dtype {str(array.dtype)[:60]}", "save it as float32")
    return array
