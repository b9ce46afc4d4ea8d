"""Folders that the ``datasets`` package writes with ``save_to_disk``, read through pyarrow alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bcls._core.errors import fail, reason_of
from bcls._core.extras import require
from bcls.data.image_files import check_member
from bcls.data.importers.settings import ImportSettings
from bcls.data.importers.table import IMAGE_NAMES, TEXT_NAMES
from bcls.data.records import Caption, ImageRecord
from bcls.data.text_files import read_json
from bcls.data.write import Content


def read(source: Path, settings: ImportSettings) -> Content:
    """Read a saved ``DatasetDict``, or one ``Dataset``, which becomes the split ``train``.

    Its pictures lie inside arrow files, so they are packed into the dataset's own ``images.zip``, unchanged. A caption
    column holds a text or a list of texts.

    Args:
        source: The folder.
        settings: ``image_column`` and ``caption_column``, where they have unusual names.

    Raises:
        ValueError: The folder is not such a dataset, or a row has no picture or caption.
        MissingExtraError: pyarrow is not installed.
    """
    images: list[ImageRecord] = []
    captions: list[Caption] = []
    for split, files in _split_files(source).items():
        for number, row in enumerate(_rows(files, settings, pictures=False)):
            where = f"{source}, {split}, row {number}"
            image_id = f"{split}-{number}"
            texts = row["caption"] if isinstance(row["caption"], list) else [row["caption"]]
            if not all(isinstance(text, str) for text in texts):
                fail(where, "a text or a list of texts", repr(row["caption"])[:60], "name it with --caption_column")
            images.append(ImageRecord(image_id, split, image_id + _ending(row["path"])))
            captions += [Caption(f"{image_id}#{place}", image_id, text, split) for place, text in enumerate(texts)]
    name = settings.name or source.resolve().name
    return Content(name, tuple(images), tuple(captions), pictures=_pictures(source, settings, images))


def _split_files(source: Path) -> dict[str, list[Path]]:
    splits = {"train": source}
    if (source / "dataset_dict.json").exists():
        content = read_json(source / "dataset_dict.json")
        named = content.get("splits") if isinstance(content, dict) else None
        if not isinstance(named, list) or not all(isinstance(split, str) and split for split in named):
            fail(str(source / "dataset_dict.json"), '"splits" with names', "something else", "save the dataset again")
        splits = {check_member(str(source), split): source / split for split in named}
    files = {split: _data_files(folder) for split, folder in splits.items()}
    empty = [split for split, found in files.items() if not found]
    if empty or not files:
        expected = "a folder written by save_to_disk, with .arrow files"
        fail(
            str(source),
            expected,
            "none" + (f" for split {empty[0]!r}" if empty else ""),
            "save the dataset to disk first",
        )
    rename = {"validation": "val"} if "val" not in files else {}
    return {rename.get(split, split): found for split, found in files.items()}


def _data_files(folder: Path) -> list[Path]:
    """The files with the rows: what ``state.json`` lists, since `datasets` keeps its caches beside them."""
    state = folder / "state.json"
    if not state.exists():
        return sorted(path for path in folder.glob("*.arrow") if not path.name.startswith("cache-"))
    content = read_json(state)
    listed = content.get("_data_files") if isinstance(content, dict) else None
    names = [one.get("filename") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else [None]
    if not all(isinstance(name, str) for name in names):
        fail(str(state), '"_data_files" with file names', "something else", "save the dataset again")
    return [folder / check_member(str(state), str(name)) for name in names]


def _rows(files: list[Path], settings: ImportSettings, *, pictures: bool) -> Iterator[dict[str, Any]]:
    """Captions and file names of the rows, or their pictures."""
    arrow = require("pyarrow", "arrow", "reading a saved Hugging Face dataset")
    for path in files:
        try:
            with arrow.memory_map(str(path)) as file, arrow.ipc.open_stream(file) as stream:
                names = stream.schema.names
                image = _column(path, names, settings.image_column, IMAGE_NAMES, "image")
                caption = _column(path, names, settings.caption_column, TEXT_NAMES, "caption")
                for batch in stream:
                    # Arrow trusts what it maps: a damaged length would be read from wherever it points to.
                    batch.validate(full=True)
                    pictured = batch.column(image)
                    if not arrow.types.is_struct(pictured.type):
                        fail(
                            str(path),
                            f"pictures in column {image!r}",
                            str(pictured.type),
                            "name it with --image_column",
                        )
                    if pictures:
                        yield from ({"bytes": one.as_py()} for one in pictured.field("bytes"))
                    else:
                        rows = zip(batch.column(caption), pictured.field("path"), strict=True)
                        yield from ({"caption": text.as_py(), "path": name.as_py()} for text, name in rows)
        except (arrow.ArrowException, OSError, UnicodeDecodeError, LookupError) as error:
            fail(str(path), "a whole arrow file", f"a damaged one ({reason_of(error)})", "save the dataset again")


def _pictures(source: Path, settings: ImportSettings, images: list[ImageRecord]) -> Iterator[tuple[str, bytes]]:
    rows = (row for files in _split_files(source).values() for row in _rows(files, settings, pictures=True))
    for image, row in zip(images, rows, strict=True):
        if not row["bytes"]:
            fail(f"{source}, {image.image_id}", "a picture inside the arrow file", "none", "save it with its pictures")
        yield str(image.file), row["bytes"]


def _column(path: Path, names: list[str], asked: str | None, usual: tuple[str, ...], what: str) -> str:
    name = next((one for one in ((asked,) if asked is not None else usual) if one in names), None)
    if name is None:
        fail(
            str(path),
            f"a column for the {what}, such as {asked or usual[0]!r}",
            ", ".join(names),
            f"name it with --{what}_column",
        )
    return name


def _ending(path: str | None) -> str:
    return Path(path).suffix.lower() if path else ".png"
