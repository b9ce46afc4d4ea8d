"""Features of images in ``.npy`` files, mapped into memory and read by the image's place in a dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._checks import fail
from bcls.data.manifest import FeatureFile

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Features:
    """Rows of one or more feature files, one for each image of a dataset, in the order of its images.

    Attributes:
        arrays: The files, mapped into memory.
        counts: For each file the number of real regions in each row, or ``None`` where all are real.
        file: For each image, which of ``arrays`` holds its row.
        row: For each image, the row.
    """

    arrays: tuple[Array, ...]
    counts: tuple[Array | None, ...]
    file: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]

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

    def regions(self, image: int) -> int | None:
        """How many of the image's rows are real and not padding; ``None`` where the file does not say."""
        counts = self.counts[self.file[image]]
        return None if counts is None else int(counts[self.row[image]])

    def take(self, images: Sequence[int] | npt.NDArray[np.int64]) -> Array:
        """Features of several images, copied into one array; only their rows are read."""
        places = np.asarray(images, dtype=np.int64)
        taken = np.empty((len(places), *self.shape[1:]), dtype=self.arrays[0].dtype)
        for number, array in enumerate(self.arrays):
            chosen = np.flatnonzero(self.file[places] == number)
            taken[chosen] = array[self.row[places[chosen]]]
        return taken


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
    splits = list(dict.fromkeys(split for split, _ in places))
    missing = [split for split in splits if split not in files]
    if missing:
        fail(
            f"features {name!r}",
            f"a file for split {missing[0]!r}",
            f"files for {', '.join(files) or 'none'}",
            "ask for one split at a time, or import the features of this one",
        )
    arrays = tuple(_open_rows(folder, files[split], sizes[split]) for split in splits)
    if len({array.shape[1:] for array in arrays}) > 1:
        got = ", ".join(f"{split} {array.shape[1:]}" for split, array in zip(splits, arrays, strict=True))
        fail(f"features {name!r}", "one shape for an image", got, "ask for one split at a time")
    counts = tuple(load_array(folder / file.counts) if (file := files[split]).counts else None for split in splits)
    number = {split: index for index, split in enumerate(splits)}
    row = [place * files[split].every for split, place in places]
    return Features(
        arrays, counts, np.array([number[split] for split, _ in places], np.int64), np.array(row, dtype=np.int64)
    )


def _open_rows(folder: Path, file: FeatureFile, images: int) -> Array:
    path = folder / file.path
    array = load_array(path)
    if array.ndim < 2 or len(array) != images * file.every:
        rows = f"{images} images" + (f" x {file.every}" if file.every > 1 else "")
        fail(str(path), f"one row for each of {rows}", f"shape {array.shape}", "import the features again")
    return array


def load_array(path: Path) -> Array:
    """Map an ``.npy`` file into memory.

    Raises:
        ValueError: It is no array of numbers.
    """
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        fail(str(path), "an .npy file with numbers", f"something else ({error})", "copy or make it again")
    return array
