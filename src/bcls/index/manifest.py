"""``index.json``: what an index was made from and with."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bcls._checks import check_whole, fail
from bcls._files import write_whole
from bcls.data.images import MAX_PIXELS
from bcls.data.text_files import read_json
from bcls.index.calibration import Calibration

FILE = "index.json"
FORMAT = "bcls-index"
VERSION = 1


@dataclass(frozen=True)
class IndexManifest:
    """Contents of the manifest."""

    identity: str
    """A random name of this index; collections in Milvus are named after it."""
    photos: str
    """The folder, archive or dataset, as an absolute path."""
    model: str
    """Name or folder that the model was loaded by."""
    weights: str
    """Hash of the model's weights."""
    dimension: int
    """Length of the vectors."""
    cross: bool
    """Whether the model scores pairs by more than one product of vectors, so that results are ranked again."""
    engine: str
    """``faiss`` or ``milvus``."""
    uri: str
    """Where Milvus is; empty for faiss."""
    features: str | None
    """Features that the images are read from, instead of pictures."""
    calibration: dict[str, Calibration]
    """How similarities become scores, by the kind of query; empty until the first run is done."""
    max_pixels: int = MAX_PIXELS
    """Most pixels of a photo that any run took in, and so of one that is shown."""

    def collection(self, what: str) -> str:
        """Name of a collection in Milvus."""
        return f"bcls_{self.identity}_{what}"


def read_index_manifest(folder: Path) -> IndexManifest:
    """Read the manifest of an index.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The folder is no index, or one of another version of bcls.
    """
    path = folder / FILE
    if not folder.exists():
        raise FileNotFoundError(2, "no such index; make it with `bcls index PHOTOS --out INDEX`", str(folder))
    if not path.exists():
        fail(str(folder), f"an index with an {FILE}", "none", "make it with `bcls index PHOTOS --out INDEX`")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        fail(str(path), f'a JSON object with "format": "{FORMAT}"', "something else", "make the index again")
    if content.get("version") != VERSION:
        remedy = "make the index again, or use the release of bcls that wrote it"
        fail(str(path), f"an index of version {VERSION}", f"version {content.get('version')!r}", remedy)
    try:
        # Older indexes do not say how many pixels they took in.
        known = {"max_pixels": MAX_PIXELS, **content}
        fields = {key: known[key] for key in IndexManifest.__dataclass_fields__}
        _check_kinds(fields)
        maps = {str(key): Calibration(**value) for key, value in fields["calibration"].items()}
        return replace(IndexManifest(**fields), calibration=maps)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        fail(str(path), "fields as bcls writes them", f"a wrong one ({repr(error)[:200]})", "make the index again")


def _check_kinds(fields: dict[str, Any]) -> None:
    for key in ("identity", "photos", "model", "weights", "engine", "uri"):
        if not isinstance(fields[key], str):
            raise TypeError(f"{key} is no text")
    for key in ("dimension", "max_pixels"):
        check_whole(key, fields[key], least=1)
    if not isinstance(fields["cross"], bool) or not isinstance(fields["features"], str | None):
        raise TypeError("cross or features")


def write_index_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Write the manifest whole."""
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    write_whole(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
