"""What an encoder is made of, as two hashes, without loading it: a cache knows by them who made it."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from bcls._checks import fail
from bcls._extras import require
from bcls._weights import minilm_folder, sha256_of
from bcls.labels.encoder import CLIP, find_source

_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".npy", ".npz"}
_SETTINGS = {".json", ".txt", ".model", ".vocab", ".py"}
# Weights in other formats, which are not what is loaded.
_OTHER_FORMATS = {"onnx", "openvino"}


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of an encoder's files."""

    weights: str
    """sha256 over the names and contents of the files with weights."""
    settings: str
    """sha256 over those with everything else: modules, pooling, longest text, vocabulary."""


def fingerprint(encoder: str | Path) -> Fingerprint:
    """Hash the files of a text encoder.

    Args:
        encoder: A name for :func:`bcls.labels.load_text_encoder`.

    Raises:
        ValueError: If there is no such encoder, or a model of the hub is not on this machine.
        MissingExtraError: If the package with its files is not installed.

    Example:
        >>> len(fingerprint("minilm").weights)
        64
    """
    folder = _folder(str(encoder))
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and _counts(path.relative_to(folder))]
    weights, settings = ([path for path in files if path.suffix in kind] for kind in (_WEIGHTS, _SETTINGS))
    if not weights:
        fail("encoder", f"weights in {folder}", "none", "give the folder of a complete model")
    return Fingerprint(_hash(folder, weights), _hash(folder, settings))


def _folder(encoder: str) -> Path:
    if encoder == "minilm":
        return minilm_folder()
    if encoder == "wordllama":
        return Path(require("wordllama", "text", "the text encoder 'wordllama'").__file__ or "").parent
    source = find_source(encoder.removeprefix(CLIP))
    if source is None:
        fail("encoder", "'minilm', 'wordllama', a folder or a hub name", repr(encoder), "check the spelling")
    if isinstance(source, Path):
        return source
    hub = require("huggingface_hub", "text", f"the text encoder {encoder!r}")
    try:
        return Path(hub.snapshot_download(source, local_files_only=True))
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        fail("encoder", f"{source!r} on this machine", reason, f"download it, such as with `hf download {source}`")


def _counts(path: Path) -> bool:
    return not any(part.startswith(".") or part in _OTHER_FORMATS for part in path.parts)


def _hash(folder: Path, paths: Iterable[Path]) -> str:
    listed = "\n".join(f"{path.relative_to(folder).as_posix()} {_known_hash(path)}" for path in paths)
    return hashlib.sha256(listed.encode()).hexdigest()


def _known_hash(path: Path) -> str:
    """Hash a file, once in a process unless it changes: many runs of a sweep ask for the same ones."""
    about = path.stat()
    return _hash_of(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=64)
def _hash_of(path: Path, _size: int, _changed: int) -> str:
    return sha256_of(path)
