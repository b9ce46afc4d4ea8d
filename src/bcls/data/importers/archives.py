"""Importers of datasets with the images inside: WebDataset tar files, and saved Hugging Face datasets."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from bcls._core.config import check_shape
from bcls._core.errors import fail, refuse_damage
from bcls._core.extras import require
from bcls.data.image_files import TarStore, check_member, is_image_file, open_store
from bcls.data.importers.captions import ImportSettings, find_column, source_files, source_name, split_from_name
from bcls.data.records import Caption, Content, ImageRecord
from bcls.data.text_files import parse_json, read_json

_CAPTION_KEYS = ("captions", "caption", "text")
#: Maximum size of a text member in bytes; larger ones are no captions.
_MAX_TEXT = 10 * 2**20


def read_webdataset(source: Path, settings: ImportSettings) -> Content:
    """Read a tar file in the format of WebDataset, or all tar files of a folder.

    Members with the same key are a sample: an image with a caption in ``KEY.txt``, or in ``KEY.json`` under
    ``caption``, ``captions`` or ``text``. The key is the id of the image, after the name of the tar file if several tar
    files have the same keys. The split is ``settings.split``, else taken from the name of the tar file.

    Args:
        source: The file or folder.
        settings: See above.

    Raises:
        ValueError: A file is not an uncompressed tar, or a caption is invalid; the message names the member.
    """
    tars = source_files(source, r".*\.tar", "a .tar file or a folder of them", "pass the folder with the tar files")
    found: list[tuple[ImageRecord, list[str]]] = []
    skipped = 0
    for number, path in enumerate(tars):
        store = open_store(path)
        if not isinstance(store, TarStore):
            fail(str(path), "a tar file", "something else", "pass the tar files, or their folder")
        split = settings.split or split_from_name(path.name)
        samples: dict[str, list[str]] = {}
        for member in store.members():
            name = PurePosixPath(member)
            samples.setdefault(str(name.parent / name.name.split(".")[0]), []).append(member)
        for key, members in samples.items():
            image = next((member for member in members if is_image_file(member)), None)
            texts = _sample_captions(store, members)
            if image is None or texts is None:
                skipped += 1
                continue
            found.append((ImageRecord(key, split, image, number), texts))
    notes = [f"{skipped} samples without an image or a caption are left out"] if skipped else []
    if len({image.image_id for image, _ in found}) < len(found):
        found = [(one._replace(image_id=f"{tars[one.source].stem}/{one.image_id}"), texts) for one, texts in found]
        notes.append("several tar files have the same keys, so image ids begin with the name of the tar file")
    images = tuple(image for image, _ in found)
    captions = tuple(
        Caption(f"{image.image_id}#{index}", image.image_id, text, image.split)
        for image, texts in found
        for index, text in enumerate(texts)
    )
    sources = tuple(path.resolve() for path in tars)
    return Content(settings.name or source_name(source), images, captions, sources, notes=tuple(notes))


def _sample_captions(store: TarStore, members: list[str]) -> list[str] | None:
    for extension in (".txt", ".json"):
        for member in members:
            if member.endswith(extension) and store.members()[member][1] <= _MAX_TEXT:
                texts = _parse_captions(f"{store.path}: {member}", store.read(member), extension)
                if texts is not None:
                    return texts
    return None


def _parse_captions(where: str, content: bytes, extension: str) -> list[str] | None:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fail(where, "utf-8 text", f"the byte 0x{content[error.start]:02x}", "convert the captions")
    if extension == ".txt":
        return [text.strip()]
    value = parse_json(text, where)
    if isinstance(value, dict):
        value = next((value[key] for key in _CAPTION_KEYS if value.get(key) is not None), None)
        if value is None:
            return None
    return _texts(where, value, "fix that member")


def _texts(where: str, value: Any, hint: str) -> list[str]:
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        fail(where, "a caption or a list of captions", repr(value)[:60], hint)
    return texts


def read_huggingface(source: Path, settings: ImportSettings) -> Content:
    """Read a folder that the ``datasets`` package wrote with ``save_to_disk``, using pyarrow alone.

    The folder contains a ``DatasetDict``, or one ``Dataset``, which becomes the split ``train``. Its images are inside
    of arrow files, so they are packed unchanged into ``images.zip``. A caption column contains a text or a list of
    texts.

    Args:
        source: The folder.
        settings: ``image_column`` and ``caption_column``, if they have unusual names.

    Raises:
        ValueError: The folder is not such a dataset, or a row has no image or caption.
        MissingExtraError: pyarrow is not installed.
    """
    images: list[ImageRecord] = []
    captions: list[Caption] = []
    splits = _arrow_files(source)
    for split, files in splits.items():
        for number, (caption, path) in enumerate(_arrow_rows(files, settings, "path")):
            image_id = f"{split}-{number}"
            texts = _texts(f"{source}, {split}, row {number}", caption, "set the column with --caption-column")
            extension = Path(path).suffix.lower() if path else ".png"
            images.append(ImageRecord(image_id, split, image_id + extension))
            captions += [Caption(f"{image_id}#{index}", image_id, text, split) for index, text in enumerate(texts)]

    def image_bytes() -> Iterator[tuple[str, bytes]]:
        rows = (row for files in splits.values() for row in _arrow_rows(files, settings, "bytes"))
        for image, (_, content) in zip(images, rows, strict=True):
            if not content:
                where = f"{source}, {image.image_id}"
                fail(where, "an image inside of the arrow file", "none", "save the dataset with its images")
            yield str(image.file), content

    name = settings.name or source.resolve().name
    return Content(name, tuple(images), tuple(captions), image_bytes=image_bytes())


def _arrow_files(source: Path) -> dict[str, list[Path]]:
    folders = {"train": source}
    if (source / "dataset_dict.json").exists():
        content = read_json(source / "dataset_dict.json")
        check_shape(str(source / "dataset_dict.json"), content, {"splits": [str]}, "save the dataset again")
        folders = {check_member(str(source), split): source / split for split in content["splits"]}
    files = {split: _data_files(folder) for split, folder in folders.items()}
    empty = [split for split, found in files.items() if not found]
    if empty or not files:
        expected = "a folder written by save_to_disk, with .arrow files"
        fail(str(source), expected, f"none for split {empty[0]!r}" if empty else "none", "save the dataset to disk")
    rename = {"validation": "val"} if "val" not in files else {}
    return {rename.get(split, split): found for split, found in files.items()}


def _data_files(folder: Path) -> list[Path]:
    """Return the files that ``state.json`` lists, since ``datasets`` keeps its caches in the same folder."""
    state = folder / "state.json"
    if not state.exists():
        return sorted(path for path in folder.glob("*.arrow") if not path.name.startswith("cache-"))
    content = read_json(state)
    check_shape(str(state), content, {"_data_files": [{"filename": str}]}, "save the dataset again")
    return [folder / check_member(str(state), one["filename"]) for one in content["_data_files"]]


def _arrow_rows(files: list[Path], settings: ImportSettings, image_field: str) -> Iterator[tuple[Any, Any]]:
    """Yield the caption of each row, and the field ``path`` or ``bytes`` of its image."""
    arrow = require("pyarrow", "arrow", "reading a saved Hugging Face dataset")
    for file in files:
        errors = (arrow.ArrowException, OSError, UnicodeDecodeError, LookupError)
        damage = refuse_damage(str(file), "a complete arrow file", "save the dataset again", *errors)
        with damage, arrow.memory_map(str(file)) as mapped, arrow.ipc.open_stream(mapped) as stream:
            names = stream.schema.names
            image, caption = (find_column(str(file), names, settings, kind) for kind in ("image", "caption"))
            for batch in stream:
                # Arrow trusts the file: a damaged length would be read from wherever it points to.
                batch.validate(full=True)
                column = batch.column(image)
                if not arrow.types.is_struct(column.type):
                    hint = "set the column with --image-column"
                    fail(str(file), f"images in column {image!r}", str(column.type), hint)
                rows = zip(batch.column(caption), column.field(image_field), strict=True)
                yield from ((text.as_py(), value.as_py()) for text, value in rows)
