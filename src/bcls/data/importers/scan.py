"""The ``*_precomp`` folders of SCAN and its followers: caption lines, image ids, region features."""

import re
from pathlib import Path

import numpy as np

from bcls._core.errors import fail
from bcls.data.features import load_array
from bcls.data.importers.settings import ImportSettings
from bcls.data.records import Caption, FeatureFile, ImageRecord
from bcls.data.text_files import find_file, read_lines
from bcls.data.write import Content

#: Captions of an image in this layout, where nothing in the folder says otherwise.
_EACH = 5
_ORDER = ("train", "dev", "val", "test", "testall")


def read(source: Path, settings: ImportSettings) -> Content:
    """Read ``{split}_caps.txt``, ``{split}_ids.txt`` and ``{split}_ims.npy`` for every split in a folder.

    Features stay in their files and are only looked into. They may have a row for each image or for each caption, and
    any number of regions. No split is shortened: ``dev`` of Flickr30K has 1,014 images here, of which SCAN's own loader
    uses 1,000. ``test`` is left out beside ``testall``, whose first images it repeats.

    Args:
        source: The folder.
        settings: ``encoding`` of the caption files.

    Raises:
        ValueError: The numbers of captions, ids and feature rows do not fit together; the message names the files.
    """
    splits = _splits(source)
    notes = []
    if "test" in splits and "testall" in splits:
        splits.remove("test")
        notes.append("split 'test' is left out: it repeats the first images of 'testall'")
    images: list[ImageRecord] = []
    captions: list[Caption] = []
    features = {}
    for split in splits:
        texts = read_lines(find_file(source / f"{split}_caps.txt"), settings.encoding)
        rows = _rows(source / f"{split}_ims.npy")
        ids, each, every = _images(source, split, len(texts), rows)
        images += [ImageRecord(image, split) for image in ids]
        captions += [
            Caption(f"{ids[number // each]}#{number % each}", ids[number // each], text.strip(), split)
            for number, text in enumerate(texts)
        ]
        if rows is not None:
            features[split] = FeatureFile(str((source / f"{split}_ims.npy").resolve()), every)
    without = [split for split in splits if split not in features]
    if without:
        notes.append(f"no features for {', '.join(without)}: there is no *_ims.npy")
    name = settings.name or source.resolve().name
    return Content(
        name, tuple(images), tuple(captions), features={"regions": features} if features else {}, notes=tuple(notes)
    )


def _splits(source: Path) -> list[str]:
    if not source.is_dir():
        raise FileNotFoundError(2, "no such folder", str(source))
    found = {match[1] for path in source.iterdir() if (match := re.fullmatch(r"(\w+)_caps\.txt(?:\.gz)?", path.name))}
    if not found:
        fail(str(source), "files such as train_caps.txt", "none", "point to the *_precomp folder")
    return sorted(found, key=lambda split: (_ORDER.index(split) if split in _ORDER else len(_ORDER), split))


def _rows(path: Path) -> int | None:
    if not path.exists():
        return None
    array = load_array(path)
    if not array.ndim:
        fail(str(path), "a row for each image or caption", "a single number", "make the features again")
    return len(array)


def _images(source: Path, split: str, texts: int, rows: int | None) -> tuple[list[str], int, int]:
    """Ids of the images, captions an image, and rows of the feature file an image."""
    path = find_file(source / f"{split}_ids.txt")
    lines = [line.strip() for line in read_lines(path)] if path.exists() else None
    if not texts:
        fail(str(source / f"{split}_caps.txt"), "a caption a line", "an empty file", "is it whole?")
    if rows is not None and rows != texts:
        if not rows or texts % rows:
            got = f"{rows} rows and {texts} captions"
            fail(str(source / f"{split}_ims.npy"), "a row for each image or caption", got, "check both files")
        each, every = texts // rows, 1
    else:
        each = _captions_each(source, split, texts, rows, lines)
        every = 1 if rows is None else each
    if texts % each:
        got = f"{texts} captions, {each} of the first image"
        fail(str(source / f"{split}_caps.txt"), "as many captions of every image", got, "check the file's last lines")
    count = texts // each
    if lines is None:
        return [f"{split}-{number}" for number in range(count)], each, every
    if len(lines) == count:
        return lines, each, every
    if len(lines) != texts:
        fail(str(path), f"{count} or {texts} lines", len(lines), "check that the files belong together")
    for number, line in enumerate(lines):
        if line != lines[number // each * each]:
            got = f"{line[:60]!r} after {lines[number // each * each][:60]!r}"
            fail(f"{path}, line {number + 1}", f"one id for {each} captions", got, "keep captions of an image together")
    return lines[::each], each, every


def _captions_each(source: Path, split: str, texts: int, rows: int | None, lines: list[str] | None) -> int:
    """Captions an image where features do not tell: none are there, or every caption has a row."""
    if lines is not None and len(lines) == texts:
        first = next((number for number, line in enumerate(lines) if line != lines[0]), texts)
        return max(first, 1)
    if lines is not None and lines and texts % len(lines) == 0:
        return texts // len(lines)
    if rows is not None:
        return _EACH if texts % _EACH == 0 and _repeats(source / f"{split}_ims.npy") else 1
    if texts % _EACH:
        fail(str(source / f"{split}_caps.txt"), f"{_EACH} lines an image", f"{texts} lines", "add a *_ids.txt file")
    return _EACH


def _repeats(path: Path) -> bool:
    """Whether the rows of a feature file come in equal groups, looking at a few of them."""
    array = load_array(path)
    starts = np.unique(np.linspace(0, len(array) // _EACH - 1, 4).astype(int)) * _EACH
    return all(np.array_equal(array[start], array[start + step]) for start in starts for step in range(1, _EACH))
