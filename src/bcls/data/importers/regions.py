"""Importers of region features: ``*_precomp`` folders of SCAN, and ``.tsv`` files of bottom-up attention."""

import base64
import gzip
import io
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls._core.files import rename, write_whole
from bcls._core.locks import lock_folder
from bcls._core.progress import track
from bcls.data.dataset import Dataset, open_dataset
from bcls.data.features import Array, load_array, new_array
from bcls.data.importers.captions import ImportSettings, source_files
from bcls.data.records import Caption, Content, FeatureFile, ImageRecord, add_features
from bcls.data.text_files import find_file, read_lines, refuse_broken_gzip

#: Name of the features.
REGIONS = "regions"
#: Captions per image of a precomp folder that contains nothing to the contrary.
_CAPTIONS_PER_IMAGE = 5
_SPLIT_ORDER = ("train", "dev", "val", "test", "testall")
#: Maximum length of a .tsv line. A line with 100 regions of 2,048 values has 1.1 million characters.
_MAX_LINE = 2**28
_TSV_COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_DAMAGED = "the file is damaged: copy it again"


def read_scan(source: Path, settings: ImportSettings) -> Content:
    """Read ``{split}_caps.txt``, ``{split}_ids.txt`` and ``{split}_ims.npy`` for every split of a folder.

    Features stay in their files. They may have a row for each image or for each caption, and any number of regions. No
    split is shortened: ``dev`` of Flickr30K has 1,014 images here, of which SCAN's own loader uses 1,000. ``test`` is
    left out if there is ``testall``, whose first images it repeats.

    Args:
        source: The folder.
        settings: ``encoding`` of the caption files.

    Raises:
        ValueError: The numbers of captions, ids and feature rows do not match; the message names the files.
    """
    splits = _scan_splits(source)
    notes = []
    if "test" in splits and "testall" in splits:
        splits.remove("test")
        notes.append("split 'test' is left out: it repeats the first images of 'testall'")
    images: list[ImageRecord] = []
    captions: list[Caption] = []
    features = {}
    for split in splits:
        caption_file, feature_file = source / f"{split}_caps.txt", source / f"{split}_ims.npy"
        texts = read_lines(find_file(caption_file), settings.encoding)
        if not texts:
            fail(str(caption_file), "one caption per line", "an empty file", "check that the file is complete")
        rows = load_array(feature_file) if feature_file.exists() else None
        if rows is not None and not rows.ndim:
            fail(str(feature_file), "a row for each image or caption", "a single number", "create the features again")
        ids, per_image = _scan_ids(source, split, len(texts), rows)
        images += [ImageRecord(image, split) for image in ids]
        for number, text in enumerate(texts):
            image = ids[number // per_image]
            captions.append(Caption(f"{image}#{number % per_image}", image, text.strip(), split))
        if rows is not None:
            features[split] = FeatureFile(str(feature_file.resolve()), len(rows) // len(ids))
    missing = [split for split in splits if split not in features]
    if missing:
        notes.append(f"no features for {', '.join(missing)}: there is no *_ims.npy")
    name = settings.name or source.resolve().name
    by_name = {REGIONS: features} if features else {}
    return Content(name, tuple(images), tuple(captions), features=by_name, notes=tuple(notes))


def _scan_splits(source: Path) -> list[str]:
    if not source.is_dir():
        raise FileNotFoundError(2, "no such folder", str(source))
    found = {match[1] for path in source.iterdir() if (match := re.fullmatch(r"(\w+)_caps\.txt(?:\.gz)?", path.name))}
    if not found:
        fail(str(source), "files such as train_caps.txt", "none", "pass the *_precomp folder")
    return sorted(found, key=lambda split: (_SPLIT_ORDER.index(split) if split in _SPLIT_ORDER else 99, split))


def _scan_ids(source: Path, split: str, texts: int, rows: Array | None) -> tuple[list[str], int]:
    """Return the ids of the images, and the number of captions per image."""
    path = find_file(source / f"{split}_ids.txt")
    lines = [line.strip() for line in read_lines(path)] if path.exists() else None
    per_image = _captions_per_image(source, split, texts, rows, lines)
    if texts % per_image:
        got = f"{texts} captions, {per_image} of the first image"
        hint = "check the last lines of the file"
        fail(str(source / f"{split}_caps.txt"), "the same number of captions for every image", got, hint)
    count = texts // per_image
    if lines is None:
        return [f"{split}-{number}" for number in range(count)], per_image
    if len(lines) == count:
        return lines, per_image
    if len(lines) != texts:
        fail(str(path), f"{count} or {texts} lines", len(lines), "check that the files belong together")
    for number, line in enumerate(lines):
        first = lines[number // per_image * per_image]
        if line != first:
            got = f"{line[:60]!r} after {first[:60]!r}"
            hint = "put the captions of an image in consecutive lines"
            fail(f"{path}, line {number + 1}", f"one id for {per_image} captions", got, hint)
    return lines[::per_image], per_image


def _captions_per_image(source: Path, split: str, texts: int, rows: Array | None, lines: list[str] | None) -> int:
    if rows is not None and len(rows) != texts:
        if not len(rows) or texts % len(rows):
            got = f"{len(rows)} rows and {texts} captions"
            fail(str(source / f"{split}_ims.npy"), "a row for each image or caption", got, "check both files")
        return texts // len(rows)
    # The features do not give the number: there are none, or a row for each caption.
    if lines and len(lines) == texts:
        return next((number for number, line in enumerate(lines) if line != lines[0]), texts)
    if lines and texts % len(lines) == 0:
        return texts // len(lines)
    if rows is not None:
        return _CAPTIONS_PER_IMAGE if texts % _CAPTIONS_PER_IMAGE == 0 and _is_repeated(rows) else 1
    if texts % _CAPTIONS_PER_IMAGE:
        expected = f"{_CAPTIONS_PER_IMAGE} lines per image"
        fail(str(source / f"{split}_caps.txt"), expected, f"{texts} lines", "add a *_ids.txt file")
    return _CAPTIONS_PER_IMAGE


def _is_repeated(rows: Array) -> bool:
    """Return whether the rows of a feature file are equal in groups; compares four groups."""
    each = _CAPTIONS_PER_IMAGE
    starts = np.unique(np.linspace(0, len(rows) // each - 1, 4).astype(int)) * each
    return all(np.array_equal(rows[start], rows[start + step]) for start in starts for step in range(1, each))


def import_regions(source: Path, folder: Path) -> tuple[str, ...]:
    """Add region features to a dataset: write ``features/regions/{split}.npy`` and add them to the manifest.

    A file has shape (N, R, D), where R is the largest number of regions in the split. Images with fewer regions are
    padded with zeros, and ``{split}_counts.npy`` contains the number of valid regions.

    Args:
        source: A ``.tsv[.gz]`` file, or a folder of them. Only the first line of an image is used.
        folder: The dataset. Its images are matched by id, by the stem of their file name, or by the number in it.

    Returns:
        Messages for the user.

    Raises:
        ValueError: A line is damaged, an image of the dataset has no line, or the name of a split is no file name.
    """
    dataset = open_dataset(folder)
    if REGIONS in dataset.feature_names:
        expected = f"a dataset without {REGIONS!r} features"
        fail("--out", expected, str(folder), "import the dataset again to replace them")
    bad_names = [split for split in dataset.splits if not re.fullmatch(r"\w[\w.+ -]*", split)]
    if bad_names:
        fail(str(folder), "names of splits that are valid file names", repr(bad_names[0]), "rename it in the dataset")
    shapes: dict[str, tuple[int, ...]] = {}
    others = 0
    for image, values in _read_regions(dataset, source):  # a first pass for the shapes of the files
        if image is None:
            others += 1
        else:
            shapes[image] = values.shape
    missing = [image for image in dataset.image_ids if image not in shapes]
    if missing:
        got = f"none for {len(missing)} of them, the first is {missing[0]!r}"
        fail(str(source), f"a line for each of the {len(dataset.images)} images", got, "add the other .tsv files")
    if len({width for _, width in shapes.values()}) > 1:
        fail(str(source), "the same number of values for all regions", "several", "use files of one extractor")
    target = dataset.folder / "features" / REGIONS
    with lock_folder(target, wait=True):
        try:
            files = _write_regions(dataset, source, shapes, target)
        finally:
            for split in dataset.splits:
                (target / f".{split}.npy.tmp").unlink(missing_ok=True)
    for split, file in files.items():
        add_features(dataset.folder, REGIONS, split, file)
    return (f"{others} lines of images outside the dataset are left out",) if others else ()


def _write_regions(
    dataset: Dataset, source: Path, shapes: dict[str, tuple[int, ...]], target: Path
) -> dict[str, FeatureFile]:
    width = next(iter(shapes.values()))[1]
    arrays: dict[str, np.memmap[tuple[int, ...], np.dtype[Any]]] = {}
    rows: dict[str, tuple[str, int]] = {}
    files = {}
    for split in dataset.splits:
        images = dataset.split(split).image_ids
        rows |= {image: (split, row) for row, image in enumerate(images)}
        counts = np.array([shapes[image][0] for image in images], dtype=np.int64)
        arrays[split] = new_array(target / f".{split}.npy.tmp", np.float32, (len(images), int(counts.max()), width))
        counts_file = None
        if counts.min() != counts.max():
            content = io.BytesIO()
            np.save(content, counts)
            write_whole(target / f"{split}_counts.npy", content.getvalue())
            counts_file = f"features/{REGIONS}/{split}_counts.npy"
        files[split] = FeatureFile(f"features/{REGIONS}/{split}.npy", counts=counts_file)
    own = ((image, values) for image, values in _read_regions(dataset, source) if image is not None)
    for image, values in track("writing features", own, len(rows)):
        split, row = rows[image]
        arrays[split][row, : len(values)] = values
    for split in files:
        arrays.pop(split).flush()  # the last reference: on Windows a mapped file cannot be renamed
        rename(target / f".{split}.npy.tmp", target / f"{split}.npy")
    return files


def _read_regions(dataset: Dataset, source: Path) -> Iterator[tuple[str | None, npt.NDArray[np.float32]]]:
    """Yield each image of the dataset with its regions ``(R, D)``, and ``None`` for each line of another image."""
    image_of = _image_keys(dataset)
    seen = set()
    for where, text in _tsv_lines(source):
        cells = text.rstrip("\r\n").split("\t")
        if tuple(cells) == _TSV_COLUMNS or not text.strip():
            continue
        if len(cells) != len(_TSV_COLUMNS):
            fail(where, f"the columns {', '.join(_TSV_COLUMNS)}", f"{len(cells)} columns", _DAMAGED)
        if not re.fullmatch(r"0*[1-9][0-9]{0,8}", cells[3], re.ASCII):
            fail(where, "a number of regions", repr(cells[3][:60]), "create the features again")
        image = image_of.get(cells[0])
        if image is None:
            yield None, np.empty((0, 0), dtype=np.float32)
        elif image not in seen:
            seen.add(image)
            yield image, _decode_regions(where, int(cells[3]), cells[5])


def _decode_regions(where: str, regions: int, text: str) -> npt.NDArray[np.float32]:
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError as error:
        fail(where, "features in base64", f"something else ({error})", _DAMAGED)
    if not content or len(content) % (4 * regions):
        fail(where, f"float32 features for {regions} regions", f"{len(content)} bytes", _DAMAGED)
    return np.frombuffer(content, dtype="<f4").reshape(regions, -1)


def _tsv_lines(source: Path) -> Iterator[tuple[str, str]]:
    """Yield file and number of each line, for error messages, and the line."""
    for path in source_files(source, r".*\.tsv(\.gz)?", ".tsv files", "pass the folder with the features"):
        open_file = gzip.open if path.suffix == ".gz" else open
        with refuse_broken_gzip(path), open_file(path, "rt", encoding="ascii", errors="replace") as file:
            for number, text in enumerate(iter(partial(file.readline, _MAX_LINE + 1), ""), start=1):
                if len(text) > _MAX_LINE:
                    expected = f"lines of at most {_MAX_LINE} characters"
                    fail(str(path), expected, "a longer one", "check that it is a .tsv file")
                yield f"{path}, line {number}", text


def _image_keys(dataset: Dataset) -> dict[str, str]:
    """Map the names that a .tsv file may have for an image: id, stem, number at the end without leading zeros."""
    keys: dict[str, str] = {}
    for make_key in (str, lambda name: Path(name).stem, _number):
        for image in dataset.images:
            for name in (image.image_id, image.file or image.image_id):
                keys.setdefault(make_key(name), image.image_id)
    return keys


def _number(name: str) -> str:
    digits = re.search(r"(?:^|_)(\d+)$", Path(name).stem)
    return (digits[1].lstrip("0") or "0") if digits else name
