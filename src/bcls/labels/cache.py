"""The files of cached embeddings: written block by block, resumed after a stop, and complete or not there.

While it is made, ``embeddings.part.npy`` holds the rows and ``progress.json`` says for which blocks they are on the
disk. In the end the rows get their name, and ``manifest.json`` is written last: without it there is no cache.

Embeddings of a dataset's captions, made once and kept in its folder.
"""

import hashlib
import json
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bcls import __version__
from bcls._core.errors import check_choice, fail
from bcls._core.files import take, write_whole
from bcls._core.progress import progress
from bcls.data.dataset import Dataset
from bcls.data.features import load_array, new_array
from bcls.data.records import CAPTIONS, PARQUET, Caption, read_captions
from bcls.features.jobs import Worker, run_blocks
from bcls.labels.encoders import PRECISIONS, fingerprint, load_text_encoder

ROWS, MANIFEST = "embeddings.npy", "manifest.json"
_PART, _PROGRESS, _LOCK = "embeddings.part.npy", "progress.json", ".lock"

Manifest: TypeAlias = dict[str, Any]
#: Computes the blocks of these numbers, in any order.
Compute: TypeAlias = Callable[[list[int]], Iterator[tuple[int, NDArray[np.float16]]]]


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a complete cache, else ``None``."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return manifest if isinstance(manifest, dict) and (folder / ROWS).is_file() else None


def open_rows(folder: Path, count: int) -> NDArray[np.float16]:
    """Map the rows of a complete cache into memory, not to be written to.

    Raises:
        ValueError: The file is damaged, or has not ``count`` rows.
    """
    rows: NDArray[np.float16] = load_array(folder / ROWS)
    if rows.ndim != 2 or len(rows) != count or rows.dtype != np.float16:
        got = f"shape {rows.shape} of {rows.dtype}"
        fail(str(folder / ROWS), f"{count} rows of float16", got, f"remove {folder}: the rows are made again")
    return rows


def write_rows(folder: Path, manifest: Manifest, count: int, block: int, compute: Compute) -> None:
    """Compute all blocks that are not on the disk yet, and make the cache complete.

    Args:
        folder: Where; an older cache stays whole until the new one is complete.
        manifest: What the cache is made of. Blocks that were made for another manifest are thrown away.
        count: Rows, at least one.
        block: Rows of a block; the last may have fewer.
        compute: Computes blocks by their numbers.
    """
    blocks = range(-(-count // block))
    rows, done = _resume(folder, manifest, count, set(blocks))
    left = [number for number in blocks if number not in done]
    for number, values in compute(left):
        if rows is None:
            rows = new_array(folder / _PART, np.float16, (count, values.shape[1]))
        rows[number * block : number * block + len(values)] = values
        rows.flush()
        done.add(number)
        write_whole(folder / _PROGRESS, json.dumps({"manifest": manifest, "done": sorted(done)}))
    del rows
    _sync(folder / _PART)
    (folder / MANIFEST).unlink(missing_ok=True)
    (folder / _PART).replace(folder / ROWS)
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    (folder / _PROGRESS).unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time write to a folder; others wait. The lock goes with its process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+", encoding="utf-8") as file:
        take(file, wait=True)
        yield


def _resume(
    folder: Path, manifest: Manifest, count: int, blocks: set[int]
) -> tuple["np.memmap[Any, Any] | None", set[int]]:
    """The rows of a broken-off run with the numbers of its blocks, or nothing."""
    try:
        noted = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
        if noted["manifest"] == manifest:
            done = {operator.index(number) for number in noted["done"]}
            if done == blocks and not (folder / _PART).exists() and not (folder / MANIFEST).exists():
                # All were done, and the rows had their name: only the manifest was missing.
                (folder / ROWS).rename(folder / _PART)
            rows = np.lib.format.open_memmap(folder / _PART, mode="r+")
            if rows.ndim == 2 and len(rows) == count and rows.dtype == np.float16:
                return rows, done
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # none, or not one that can be gone on with
    # It must not speak for the file that is begun now.
    (folder / _PROGRESS).unlink(missing_ok=True)
    return None, set()


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


#: Captions of a block: a few seconds of work, and what a stop may cost.
BLOCK = 4096
_FORMAT = 1


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
    """Embeddings of a dataset's captions, from its folder; made there first where they are not yet.

    They lie in ``DIR/labels/ENCODER/``: ``embeddings.npy``, a row for each caption of the folder, and
    ``manifest.json``, which says of what they are made. Making them shows progress, and goes on with the next block
    after a stop. Rows are kept as float16, so their lengths are off 1 by up to 0.0005: who reads them makes them
    float32 and normalises them again, as :func:`bcls.labels.relevance` does. The relevance of pairs is computed from
    them for each batch and never stored: for COCO all of it would be 256 GB.

    Args:
        dataset: All of a folder's captions, or a split of them.
        encoder: Name for :func:`bcls.labels.load_text_encoder`.
        precision: What they are computed in, ``"float32"`` or ``"bfloat16"``.
        engine: ``"local"`` or ``"ray"``; see :func:`bcls.features.run_blocks`.
        address: A Ray cluster.
        workers: Workers on Ray.
        overwrite: Make them anew where those in the folder are of other captions, weights or precision.

    Returns:
        ``(C, d)`` float16, row ``i`` of ``dataset.captions[i]``: mapped from the file where the dataset is all of the
        folder or captions that lie together in it, a copy of the rows where it is something else. Not to be written to.

    Raises:
        ValueError: If what is in the folder was made from other captions, by another encoder or in another precision,
            or there are no captions.
    """
    check_choice("precision", precision, PRECISIONS)
    captions = _captions_of(dataset.folder)
    if not captions:
        fail("dataset", "captions", f"none in {dataset.folder}", "import the dataset again")
    folder = cache_folder(dataset.folder, encoder)
    wanted = _manifest(captions, encoder, precision)
    with alone(folder):
        found = read_manifest(folder)
        reasons = [] if found is None else _differences(found, wanted)
        if reasons and not overwrite:
            command = f"bcls labels embed {dataset.folder} --encoder {encoder}"
            command += "" if precision == "float32" else f" --precision {precision}"
            got = " and ".join(reasons)
            fail(str(folder), "embeddings of these captions by this encoder", got, f"`{command} --overwrite`")
        if found is None or reasons:
            _embed(folder, wanted, [caption.text for caption in captions], engine, address, workers)
        rows = open_rows(folder, len(captions))
    return _take(rows, captions, dataset.captions)


def _captions_of(folder: Path) -> tuple[Caption, ...]:
    """All captions of a folder, read once in a process unless the file changes: runs of a sweep share them."""
    path = next((folder / name for name in (CAPTIONS, PARQUET) if (folder / name).exists()), folder / CAPTIONS)
    about = path.stat()
    return _read_captions(folder, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=1)
def _read_captions(folder: Path, _size: int, _changed: int) -> tuple[Caption, ...]:
    return read_captions(folder)


def cache_folder(dataset: Path, encoder: str) -> Path:
    """Where the embeddings by an encoder lie.

    Raises:
        ValueError: The name would be another folder of the dataset, or the dataset itself.

    Example:
        >>> cache_folder(Path("flickr8k"), "organisation/model").as_posix()
        'flickr8k/labels/organisation--model'
    """
    name = re.sub(r"[^\w.-]", "-", encoder.strip("/").replace("/", "--"))
    if name in {"", ".", ".."}:
        fail("encoder", "a name that a folder can have", repr(encoder), "write out the path of the model's folder")
    return dataset / "labels" / name


@lru_cache(maxsize=1)
def _captions_hash(captions: tuple[Caption, ...]) -> str:
    digest = hashlib.sha256()
    for caption in captions:
        # Lengths in front, so that no two lists of captions give the same bytes.
        for part in (caption.caption_id.encode(), caption.text.encode()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _manifest(captions: tuple[Caption, ...], encoder: str, precision: str) -> Manifest:
    return {
        "format": _FORMAT,
        "encoder": encoder,
        **asdict(fingerprint(encoder)),
        "captions": len(captions),
        "captions_sha256": _captions_hash(captions),
        "dtype": "float16",
        "precision": precision,
        "versions": _versions(),
    }


_REASONS = {
    "format": "a file of another version",
    "encoder": "those of another encoder",
    "weights": "those of other weights",
    "settings": "those of an encoder with other settings",
    "captions_sha256": "those of other captions",
    "precision": "those of another precision",
}


def _differences(found: Manifest, wanted: Manifest) -> list[str]:
    """Why a cache is not the one that is wanted; versions are for the record and no reason."""
    return [reason for key, reason in _REASONS.items() if found.get(key) != wanted[key]]


def _versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3])), "bcls": __version__}
    for package in ("torch", "sentence-transformers", "transformers", "wordllama"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _embed(folder: Path, manifest: Manifest, texts: list[str], engine: str, address: str | None, workers: int) -> None:
    encoder = manifest["encoder"]
    start = partial(start_worker, encoder, manifest["precision"])
    blocks = [texts[first : first + BLOCK] for first in range(0, len(texts), BLOCK)]
    with progress(f"captions by {encoder}", len(texts)) as step:

        def compute(left: list[int]) -> Iterator[tuple[int, NDArray[Any]]]:
            done = len(texts) - sum(len(blocks[number]) for number in left)
            step(done)
            chosen = [blocks[number] for number in left]
            for place, rows in run_blocks(chosen, start, engine=engine, address=address, workers=workers):
                yield left[place], rows
                done += len(rows)
                step(done)

        write_rows(folder, manifest, len(texts), BLOCK, compute)


def start_worker(encoder: str, precision: str) -> Worker[list[str]]:
    """Build what embeds a block, in the process that does it."""
    return partial(_embed_block, load_text_encoder(encoder, precision))


def _embed_block(model: Any, texts: list[str]) -> NDArray[np.float16]:
    rows = model.encode(texts)
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        text = texts[int(bad.argmax())]
        fail("encoder", "finite vectors", f"NaN or infinity for {text[:60]!r}", "use another encoder or float32")
    half: NDArray[np.float16] = rows.astype(np.float16)
    return half


def _take(rows: NDArray[np.float16], captions: Sequence[Caption], wanted: Sequence[Caption]) -> NDArray[np.float16]:
    place = {caption.caption_id: row for row, caption in enumerate(captions)}
    for caption in wanted:
        if caption.caption_id not in place or captions[place[caption.caption_id]].text != caption.text:
            got = f"caption {caption.caption_id!r}, which is not there or has another text"
            fail("dataset", "captions of its folder", got, "open the dataset again")
    chosen = np.array([place[caption.caption_id] for caption in wanted], dtype=np.int64)
    if len(chosen) and (np.diff(chosen) == 1).all():
        return rows[chosen[0] : chosen[-1] + 1]
    return rows[chosen]
