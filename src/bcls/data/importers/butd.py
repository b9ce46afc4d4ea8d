"""Region features of bottom-up attention: ``.tsv`` files with base64 float32 arrays, turned into ``.npy`` files."""

import base64
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls._core.files import take, write_whole
from bcls._core.progress import progress
from bcls.data.dataset import Dataset, open_dataset
from bcls.data.features import new_array
from bcls.data.records import FeatureFile
from bcls.data.records import add_features as enter

NAME = "regions"
#: Characters of a line: 100 regions of 2,048 values take 1.1 million.
_LONGEST = 2**28
_COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")


class _Line(NamedTuple):
    where: str
    image: str
    regions: int
    values: str


def add_features(source: Path, folder: Path) -> tuple[str, ...]:
    """Write the features of a dataset's images to ``features/regions/{split}.npy``, and name them in its manifest.

    A file has shape (N, R, D): R is the largest number of regions in the split. Images with fewer are filled up with
    zeros, and ``{split}_counts.npy`` says how many are real.

    Args:
        source: A ``.tsv[.gz]`` file, or a folder of them. An image that comes twice counts once.
        folder: The dataset. Its images are found by id, by the stem of their file name, or by the number in it.

    Returns:
        Notes for the user.

    Raises:
        ValueError: A line is damaged, an image of the dataset has none, or a split's name cannot be that of a file; the
            message names it.
    """
    dataset = open_dataset(folder)
    if NAME in dataset.feature_names:
        fail("--out", f"a dataset without {NAME!r} features", str(folder), "import the dataset again to replace them")
    for split in dataset.splits:
        if not re.fullmatch(r"\w[\w.+ -]*", split):
            fail(str(folder), "splits whose names a file can have", repr(split), "rename it in the dataset")
    numbers = _keys(dataset)
    shapes: dict[str, tuple[int, int]] = {}
    foreign = 0
    for line in _lines(source):  # first the shapes, so that the files can be laid out
        image = numbers.get(line.image)
        if image is None:
            foreign += 1
        elif image not in shapes:
            shapes[image] = line.regions, len(_values(line)) // line.regions
    missing = [image for image in dataset.image_ids if image not in shapes]
    if missing:
        got = f"none for {len(missing)} of them, {missing[0]!r} the first"
        fail(str(source), f"a line for each of the {len(dataset.images)} images", got, "add the other .tsv files")
    if len({width for _, width in shapes.values()}) > 1:
        fail(str(source), "one number of values a region", "several", "use files of one extractor")
    _write(dataset, source, numbers, shapes)
    return (f"{foreign} lines of images outside the dataset are left out",) if foreign else ()


def _write(dataset: Dataset, source: Path, numbers: dict[str, str], shapes: dict[str, tuple[int, int]]) -> None:
    place = dataset.folder / "features" / NAME
    with _alone(place):
        try:
            files = _write_files(dataset, source, numbers, shapes, place)
        finally:
            for split in dataset.splits:
                (place / f".{split}.npy.tmp").unlink(missing_ok=True)
    # The lock of everybody who enters features: they read the manifest and write it back.
    with _alone(place.parent):
        for split, file in files.items():
            enter(dataset.folder, NAME, split, file)


def _write_files(
    dataset: Dataset, source: Path, numbers: dict[str, str], shapes: dict[str, tuple[int, int]], place: Path
) -> dict[str, FeatureFile]:
    width = next(iter(shapes.values()))[1]
    arrays: dict[str, np.memmap[tuple[int, ...], np.dtype[Any]]] = {}
    rows: dict[str, tuple[str, int]] = {}
    files = {}
    for split in dataset.splits:
        images = dataset.split(split).image_ids
        rows |= {image: (split, row) for row, image in enumerate(images)}
        counts = np.array([shapes[image][0] for image in images], dtype=np.int64)
        shape = (len(images), int(counts.max()), width)
        arrays[split] = new_array(place / f".{split}.npy.tmp", np.float32, shape)
        files[split] = FeatureFile(f"features/{NAME}/{split}.npy")
        if counts.min() != counts.max():
            content = io.BytesIO()
            np.save(content, counts)
            write_whole(place / f"{split}_counts.npy", content.getvalue())
            files[split] = FeatureFile(files[split].path, 1, f"features/{NAME}/{split}_counts.npy")
    left = set(rows)
    with progress("writing features", len(rows)) as step:
        for line in _lines(source):
            image = numbers.get(line.image)
            if image in left:
                left.remove(image)
                split, row = rows[image]
                arrays[split][row, : line.regions] = _values(line).reshape(line.regions, width)
                step(len(rows) - len(left))
    for split, array in arrays.items():
        array.flush()
        (place / f".{split}.npy.tmp").replace(place / f"{split}.npy")
    return files


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder of features; wait until they are done."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+", encoding="utf-8") as file:
        take(file, wait=True)
        yield


def _lines(source: Path) -> Iterator[_Line]:
    files = [source]
    if source.is_dir():
        files = sorted(path for path in source.iterdir() if re.search(r"\.tsv(\.gz)?$", path.name))
        if not files:
            fail(str(source), ".tsv files", "none", "point to the folder with the features")
    for path in files:
        for number, text in enumerate(_texts(path), start=1):
            where = f"{path}, line {number}"
            cells = text.rstrip("\r\n").split("\t")
            if tuple(cells) == _COLUMNS or not text.strip():
                continue
            if len(cells) != len(_COLUMNS):
                fail(where, f"the columns {', '.join(_COLUMNS)}", f"{len(cells)} columns", "is the file whole?")
            if not re.fullmatch(r"0*[1-9][0-9]{0,8}", cells[3], re.ASCII):
                fail(where, "a number of regions", repr(cells[3][:60]), "make the features again")
            yield _Line(where, cells[0], int(cells[3]), cells[5])


def _texts(path: Path) -> Iterator[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="ascii", errors="replace") as file:
            while text := file.readline(_LONGEST + 1):
                if len(text) > _LONGEST:
                    fail(str(path), f"lines of at most {_LONGEST} characters", "a longer one", "is it a .tsv file?")
                yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        fail(str(path), "a whole gzip file", f"a broken one ({error})", "copy or download it again")


def _values(line: _Line) -> npt.NDArray[np.float32]:
    try:
        content = base64.b64decode(line.values, validate=True)
    except ValueError as error:
        fail(line.where, "features in base64", f"something else ({error})", "the file is damaged: copy it again")
    if not content or len(content) % (4 * line.regions):
        got = f"{len(content)} bytes"
        fail(line.where, f"float32 features for {line.regions} regions", got, "the file is damaged: copy it again")
    return np.frombuffer(content, dtype="<f4")


def _keys(dataset: Dataset) -> dict[str, str]:
    """What a .tsv file may call each image: its id, its stem, the number at its end without leading zeros."""
    keys: dict[str, str] = {}
    for make in (lambda name: name, _stem, _number):
        for image in dataset.images:
            for name in (image.image_id, image.file or image.image_id):
                keys.setdefault(make(name), image.image_id)
    return keys


def _stem(name: str) -> str:
    return Path(name).stem


def _number(name: str) -> str:
    digits = re.search(r"(?:^|_)(\d+)$", Path(name).stem)
    return (digits[1].lstrip("0") or "0") if digits else name
