"""Embeddings of a dataset's captions, computed once and stored in the dataset folder."""

import hashlib
import json
import platform
import re
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls._core.errors import check_choice, fail, quoted
from bcls._core.extras import MissingExtraError, minilm_folder, require, sha256_of
from bcls._core.files import write_whole
from bcls._core.locks import lock_folder
from bcls._core.progress import progress
from bcls.data.dataset import Dataset
from bcls.data.features import load_array
from bcls.data.records import Caption, read_captions
from bcls.features.array_cache import ArrayCache, first_difference, installed_versions
from bcls.features.jobs import Worker, check_engine, run_blocks
from bcls.labels.encoders import (
    PRECISIONS,
    encoder_parts,
    find_source,
    import_wordllama,
    load_text_encoder,
    unit_or_zero,
)

ROWS, MANIFEST = "embeddings.npy", "manifest.json"
#: Captions in a block: a few seconds of work, the most that an interruption loses.
BLOCK = 4096

Manifest: TypeAlias = dict[str, Any]


def cached_embeddings(
    dataset: Dataset,
    encoder: str = "minilm",
    *,
    precision: str = "float32",
    engine: str = "local",
    address: str | None = None,
    workers: int = 1,
    overwrite: bool = False,
) -> NDArray[np.float16]:
    """Return embeddings of a dataset's captions from its folder; compute and store them first if they are missing.

    The folder ``DIR/labels/ENCODER/`` contains ``embeddings.npy``, one row for each caption of the dataset folder, and
    ``manifest.json``, which records the inputs. The computation shows progress and is resumed after an interruption.
    Rows are stored as float16, so their lengths differ from 1 by up to 0.0005: convert them to float32 and normalize
    them again, as :func:`bcls.labels.relevance` does. The relevance of pairs is computed from them for each batch and
    never stored: for COCO all of it would take 256 GB.

    Args:
        dataset: All captions of a dataset folder, or a split of them.
        encoder: Name for :func:`bcls.labels.load_text_encoder`. Its package is needed only to compute embeddings.
        precision: Precision of the computation, ``"float32"`` or ``"bfloat16"``.
        engine: ``"local"`` or ``"ray"``; see :func:`bcls.features.jobs.run_blocks`.
        address: Address of a Ray cluster.
        workers: Number of Ray actors.
        overwrite: Replace stored embeddings of other captions, weights or precision.

    Returns:
        ``(C, d)`` float16, row ``i`` of ``dataset.captions[i]``, read-only: memory-mapped if the captions of the
        dataset are consecutive in the folder, otherwise a copy.

    Raises:
        ValueError: The stored embeddings are of other captions, of another encoder or in another precision, or the
            dataset has no captions.
    """
    check_choice("precision", precision, PRECISIONS)
    check_engine(engine, address, workers)
    captions = read_captions(dataset.folder)
    if not captions:
        fail("dataset", "captions", f"none in {dataset.folder}", "import the dataset again")
    folder = cache_folder(dataset.folder, encoder)
    wanted = _manifest(folder, captions, encoder, precision)
    # Versions are only recorded.
    wanted_versions = {"versions": wanted["versions"]}
    with ExitStack() as stack:
        found = read_manifest(folder)
        if found is None or first_difference(found | wanted_versions, wanted):
            # Complete embeddings are read without the lock: their folder may be read-only.
            stack.enter_context(lock_folder(folder, wait=True))
            found = read_manifest(folder)  # another process may have completed them
        changed = found and first_difference(found | wanted_versions, wanted)
        if changed and not overwrite:
            command = f"bcls labels embed {quoted(dataset.folder)} --encoder {quoted(encoder)}"
            command += "" if precision == "float32" else f" --precision {precision}"
            expected = f"embeddings with {changed.name} {changed.now}"
            fail(str(folder), expected, changed.before, f"replace them with `{command} --overwrite`")
        if changed or not found:
            _embed(folder, wanted, [caption.text for caption in captions], engine, address, workers)
        rows = open_rows(folder, len(captions))
    return _select(rows, captions, dataset.captions)


def caption_vectors(dataset: Any, encoder: str) -> NDArray[np.float32]:
    """Embed the captions of a dataset; without the encoder's package, read them from the cache in its folder.

    Args:
        dataset: A :class:`bcls.data.Dataset`, or any object with ``texts``, which has no cache.
        encoder: Name for :func:`bcls.labels.load_text_encoder`.

    Returns:
        ``(C, d)`` float32 unit rows.

    Raises:
        ValueError: There is no such encoder.
        MissingExtraError: Its package is not installed, and there is no cache.
    """
    try:
        model = load_text_encoder(encoder)
    except MissingExtraError:
        if not isinstance(dataset, Dataset):
            raise
        return unit_or_zero(cached_embeddings(dataset, encoder).astype(np.float32))
    with progress(f"encoding with {encoder}", len(set(dataset.texts))) as step:
        return model.encode(dataset.texts, lambda done, _: step(done))


def cache_folder(dataset: Path, encoder: str) -> Path:
    """Return the folder of the embeddings by an encoder.

    Raises:
        ValueError: The name would be another folder of the dataset, or the dataset itself.

    Example:
        >>> cache_folder(Path("flickr8k"), "organization/model").as_posix()
        'flickr8k/labels/organization--model'
    """
    name = re.sub(r"[^\w.-]", "-", encoder.strip("/").replace("/", "--"))
    if name in {"", ".", ".."}:
        fail("encoder", "a name that can be a folder name", repr(encoder), "use the full path of the model's folder")
    return dataset / "labels" / name


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of complete embeddings, otherwise ``None``."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return manifest if isinstance(manifest, dict) and (folder / ROWS).is_file() else None


def open_rows(folder: Path, count: int) -> NDArray[np.float16]:
    """Memory-map the rows of complete embeddings, read-only.

    Raises:
        ValueError: The file is damaged, or does not have ``count`` rows.
    """
    rows: NDArray[np.float16] = load_array(folder / ROWS)
    if rows.ndim != 2 or len(rows) != count or rows.dtype != np.float16:
        got = f"shape {rows.shape} of {rows.dtype}"
        fail(str(folder / ROWS), f"{count} rows of float16", got, f"delete {folder}, to compute them again")
    return rows


class Fingerprint(NamedTuple):
    """Hashes of the files of an encoder: of its weights, and of its settings and vocabulary."""

    weights: str
    settings: str


def fingerprint(encoder: str | Path) -> Fingerprint:
    """Hash the files of a text encoder without loading it.

    Args:
        encoder: Name for :func:`bcls.labels.load_text_encoder`.

    Raises:
        ValueError: There is no such encoder, or a model of the hub is not on this machine.
        MissingExtraError: The package with its files is not installed.

    Example:
        >>> len(fingerprint("minilm").weights)
        64
    """
    weights: list[str] = []
    settings: list[str] = []
    for part in encoder_parts(str(encoder)):
        folder = _encoder_folder(part)
        found = _file_hashes(folder, _WEIGHTS)
        if not found:
            fail("encoder", f"weights in {folder}", "none", "use the folder of a complete model")
        weights += found
        settings += _file_hashes(folder, _SETTINGS)
    return Fingerprint(*(hashlib.sha256("\n".join(lines).encode()).hexdigest() for lines in (weights, settings)))


_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".npy", ".npz"}
_SETTINGS = {".json", ".txt", ".model", ".vocab", ".py"}


def _encoder_folder(encoder: str) -> Path:
    if encoder == "minilm":
        return minilm_folder()
    if encoder == "wordllama":
        return Path(import_wordllama().__file__ or "").parent
    source = find_source("encoder", encoder)
    if isinstance(source, Path):
        return source
    hub = require("huggingface_hub", "text", f"the text encoder {encoder!r}")
    try:
        return Path(hub.snapshot_download(source, local_files_only=True))
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        fail("encoder", f"{source!r} on this machine", reason, f"download it, for example with `hf download {source}`")


def _file_hashes(folder: Path, suffixes: set[str]) -> list[str]:
    """Names and hashes of files, without hidden ones and weights in formats that are not loaded."""
    lines = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        skipped = any(part.startswith(".") or part in {"onnx", "openvino"} for part in name.parts)
        if path.suffix in suffixes and not skipped and path.is_file():
            status = path.stat()
            lines.append(f"{name.as_posix()} {_file_hash(path, status.st_size, status.st_mtime_ns)}")
    return lines


@lru_cache(maxsize=64)
def _file_hash(path: Path, _size: int, _modified: int) -> str:
    """Hash a file once per process, unless it changes: the runs of a sweep use the same files."""
    return sha256_of(path)


def _captions_hash(captions: tuple[Caption, ...]) -> str:
    digest = hashlib.sha256()
    for caption in captions:
        # With the lengths, different lists of captions give different bytes.
        for part in (caption.caption_id.encode(), caption.text.encode()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _manifest(folder: Path, captions: tuple[Caption, ...], encoder: str, precision: str) -> Manifest:
    try:
        hashes = fingerprint(encoder)._asdict()
    except MissingExtraError:
        found = read_manifest(folder)
        if found is None:
            raise
        hashes = {key: found.get(key) for key in ("weights", "settings")}  # cannot be compared on this machine
    packages = installed_versions("torch", "sentence-transformers", "transformers", "wordllama")
    return {
        "format": 1,
        "encoder": encoder,
        **hashes,
        "captions": len(captions),
        "captions_sha256": _captions_hash(captions),
        "dtype": "float16",
        "precision": precision,
        "versions": {"python": platform.python_version(), **packages},
    }


def _embed(folder: Path, manifest: Manifest, texts: list[str], engine: str, address: str | None, workers: int) -> None:
    """Compute the blocks that are not on disk, then write the manifest."""
    encoder = manifest["encoder"]
    cache = ArrayCache(folder / ROWS, len(texts), BLOCK, manifest, restart=True)
    remaining = cache.remaining
    blocks = [texts[number * BLOCK : (number + 1) * BLOCK] for number in remaining]
    start = partial(start_worker, encoder, manifest["precision"])
    done = len(texts) - sum(map(len, blocks))
    with progress(f"captions by {encoder}", len(texts)) as step:
        step(done)
        for place, rows in run_blocks(blocks, start, engine=engine, address=address, workers=workers):
            cache.write(remaining[place], rows)
            done += len(rows)
            step(done)
    write_cache(cache, manifest)


def write_cache(cache: ArrayCache, manifest: Manifest) -> None:
    """Complete embeddings: the previous manifest is removed first, since it does not describe the new rows."""
    path = cache.path.with_name(MANIFEST)
    path.unlink(missing_ok=True)
    cache.finish(lambda: write_whole(path, json.dumps(manifest, indent=2) + "\n"))


def start_worker(encoder: str, precision: str) -> Worker[list[str]]:
    """Build the function that embeds a block, in the process that runs it."""
    return partial(_embed_block, load_text_encoder(encoder, precision))


def _embed_block(model: Any, texts: list[str]) -> NDArray[np.float16]:
    rows = model.encode(texts)
    wrong = ~np.isfinite(rows).all(axis=1)
    if wrong.any():
        text = texts[int(wrong.argmax())]
        fail("encoder", "finite vectors", f"NaN or infinity for {text[:60]!r}", "use another encoder, or float32")
    half: NDArray[np.float16] = rows.astype(np.float16)
    return half


def _select(rows: NDArray[np.float16], captions: Sequence[Caption], wanted: Sequence[Caption]) -> NDArray[np.float16]:
    row_of = {caption.caption_id: row for row, caption in enumerate(captions)}
    for caption in wanted:
        if caption.caption_id not in row_of or captions[row_of[caption.caption_id]].text != caption.text:
            got = f"caption {caption.caption_id!r}, which is missing there or has another text"
            fail("dataset", "captions of its folder", got, "open the dataset again")
    chosen = np.array([row_of[caption.caption_id] for caption in wanted], dtype=np.int64)
    consecutive = len(chosen) and (np.diff(chosen) == 1).all()
    return rows[chosen[0] : chosen[-1] + 1] if consecutive else rows[chosen]
