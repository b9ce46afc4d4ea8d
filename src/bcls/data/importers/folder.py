"""A user's own pictures, with a table of captions beside them."""

from pathlib import Path

from bcls._core.errors import fail
from bcls.data.importers.pictures import find_pictures
from bcls.data.importers.settings import ImportSettings
from bcls.data.importers.table import read_table
from bcls.data.records import Caption, ImageRecord
from bcls.data.text_files import find_file
from bcls.data.write import Content

_USUAL = tuple(
    f"{stem}.{ending}{packed}"
    for stem in ("captions", "metadata", "results")
    for ending in ("jsonl", "csv", "tsv", "txt")
    for packed in ("", ".gz")
)


def read(source: Path, settings: ImportSettings) -> Content:
    """Read pictures and their captions, any number for an image.

    Args:
        source: Folder with the pictures and the captions file, or a zip or tar with the pictures.
        settings: ``captions`` names the file with the captions and ``images`` the place of the pictures, where they are
            not found in ``source``; ``split`` is that of rows that name none, ``"train"`` by default.

    Raises:
        ValueError: There is no captions file, or a row is wrong; the message names the line.
    """
    rows = read_table(_captions_file(source, settings), settings)
    splits: dict[str, str] = {}
    captions = []
    counts: dict[str, int] = {}
    for row in rows:
        first = splits.setdefault(row.image, row.split)
        if first != row.split:
            got = f"{row.split!r} here and {first!r} above"
            fail(row.where, f"one split for image {row.image!r}", got, "put all captions of an image into one split")
        place = counts[row.image] = counts.get(row.image, -1) + 1
        captions.append(Caption(row.caption_id or f"{row.image}#{place}", row.image, row.text, row.split))
    images = [ImageRecord(image, split) for image, split in splits.items()]
    place_of_images = settings.images or _pictures_place(source)
    found, sources, notes = find_pictures(images, [(image,) for image in splits], place_of_images)
    whole = source.resolve()
    name = settings.name or (whole.name if whole.is_dir() else whole.stem)
    return Content(name, found, tuple(captions), sources, notes=notes)


def _captions_file(source: Path, settings: ImportSettings) -> Path:
    if settings.captions is not None:
        return find_file(Path(settings.captions))
    if not source.exists():
        raise FileNotFoundError(2, "no such folder", str(source))
    there = [source / name for name in _USUAL if (source / name).is_file()] if source.is_dir() else []
    if len(there) != 1:
        got = ", ".join(path.name for path in there) or "none"
        fail(str(source), "one captions file, such as captions.csv", got, "name it with --captions")
    return there[0]


def _pictures_place(source: Path) -> Path:
    if not source.is_dir():
        return source
    for name in ("images", "images.zip", "images.tar"):
        if (source / name).exists():
            return source / name
    return source
