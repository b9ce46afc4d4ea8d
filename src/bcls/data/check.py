"""Checks of a dataset: captions, features, images and duplicates across splits, with a quarantine of bad items."""

import errno
import hashlib
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from bcls._core.config import check_shape
from bcls._core.errors import check_whole, fail, visible
from bcls._core.extras import sha256_of
from bcls._core.progress import track
from bcls.data.dataset import Dataset, open_dataset
from bcls.data.features import Features
from bcls.data.image_files import open_store
from bcls.data.images import MAX_PIXELS, decode_with_format
from bcls.data.records import ImageRecord, Quarantine, write_quarantine
from bcls.data.text_files import read_json

#: Kinds of findings that make a check fail, with a description.
PROBLEMS = {
    "changed-file": "file differs from its checksum in a manifest",
    "missing-image": "image without a file, or with one that cannot be opened",
    "damaged-image": "image that cannot be decoded",
    "image-without-captions": "image without captions",
    "empty-caption": "caption without words",
    "duplicate-image": "same image in two splits",
    "near-duplicate-image": "nearly the same image in two splits",
    "bad-features": "features are missing, not finite or all zero",
}
#: Kinds of findings that are reported only: they are common in real datasets and do little harm.
NOTES = {
    "wrong-extension": "file extension of another image format",
    "animated": "animation, of which the first frame is used",
    "repeated-image": "same image twice in one split",
    "repeated-caption": "caption with the text of another caption of the same image",
    "shared-caption": "caption with the text of a training caption",
    "long-caption": "caption of more than 1,000 characters",
    "empty-regions": "some regions of an image are all zero",
    "not-checked": "part that was not checked",
}
_MAX_CAPTION = 1000
#: Unicode categories: punctuation, separators, control and format characters.
_NO_WORDS = ("P", "Z", "Cc", "Cf")
#: Side of the gray thumbnails that confirm near duplicates.
_THUMBNAIL = 16
#: Lowest correlation of two thumbnails of near duplicates.
_MIN_CORRELATION = 0.95
#: Standard deviation up to which a thumbnail has too little contrast to be compared.
_MIN_CONTRAST = 4.0
_BLOCK = 256
#: System errors for one file. Others, such as too many open files, are no property of an image.
_PROPERTIES_OF_A_FILE = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG}


class Finding(NamedTuple):
    """A result of a check: its kind, the id of the image or caption or the name of the file, and details."""

    kind: str
    subject: str
    detail: str

    @property
    def is_problem(self) -> bool:
        """Whether it makes the check fail."""
        return self.kind in PROBLEMS


@dataclass(frozen=True)
class CheckSettings:
    """Flags of ``bcls data check``.

    Attributes:
        images: New location of the images if they have moved since the import.
        workers: Threads that read images; 0 for one per processor.
        max_pixels: Images with more pixels count as damaged.
        near: Largest number of different bits (of 64) in the hashes of near duplicates, at most 8; -1 to skip that
            check.
        strict: Exit with 1 for notes as well.
        json: Print all findings as JSON.
    """

    images: str | None = None
    workers: int = 0
    max_pixels: int = MAX_PIXELS
    near: int = 4
    strict: bool = False
    json: bool = False


@dataclass(frozen=True)
class CheckReport:
    """Result of a check.

    Attributes:
        folder: The dataset.
        findings: All problems and notes.
        quarantine: Images and captions that training should skip.
    """

    folder: Path
    findings: tuple[Finding, ...]
    quarantine: Quarantine

    @property
    def is_clean(self) -> bool:
        """Whether no problem was found; notes do not count."""
        return not any(finding.is_problem for finding in self.findings)

    def counts(self) -> dict[str, int]:
        """Return the number of findings of each kind."""
        return dict(Counter(finding.kind for finding in self.findings))

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return {
            "folder": str(self.folder),
            "clean": self.is_clean,
            "counts": self.counts(),
            "quarantined": {"images": len(self.quarantine.images), "captions": len(self.quarantine.captions)},
            "findings": [{**one._asdict(), "problem": one.is_problem} for one in self.findings],
        }


def check_dataset(folder: str | Path, settings: CheckSettings | None = None) -> CheckReport:
    """Check all captions, features and images of a dataset, and write ``quarantine.json`` into its folder.

    Of images that two splits share, the one of the training split goes into quarantine, so that test sets stay
    complete.

    Args:
        folder: The dataset.
        settings: Options; the defaults of :class:`CheckSettings` if omitted.

    Returns:
        The findings and the quarantine.

    Raises:
        ValueError: The dataset cannot be opened, none of its images exists, or a setting is invalid.
        OSError: The images are not at the path in the manifest.
    """
    settings = settings or CheckSettings()
    workers = check_whole("--workers", settings.workers, least=0)
    max_pixels = check_whole("--max-pixels", settings.max_pixels, least=1)
    near = check_whole("--near", settings.near, least=-1)
    if near > 8:
        fail("--near", "at most 8 bits", near, "with more, most images would count as duplicates")
    dataset = open_dataset(folder, images=settings.images)
    findings = [*_check_files(dataset, settings.images), *check_captions(dataset), *check_features(dataset)]
    if dataset.image_sources:
        for source in dict.fromkeys(dataset.image_sources):
            try:
                open_store(source).names()  # one error for a missing or refused archive, not one per image
            except FileNotFoundError as error:
                hint = "the images are missing; if they have moved, set their location with --images PATH"
                raise FileNotFoundError(errno.ENOENT, hint, str(source)) from error
        prints, found = fingerprint_images(dataset, workers=workers, max_pixels=max_pixels)
        if len(found) == len(dataset.images) and all(one.kind == "missing-image" for one in found):
            # The images are elsewhere. A quarantine of all images would hide that.
            expected = f"images of the {len(found)} records of {dataset.folder}"
            fail("--images", expected, f"none of them ({found[0].detail})", "set their location with --images PATH")
        findings += [*found, *duplicate_images(prints), *(near_duplicates(prints, near) if near >= 0 else ())]
    else:
        findings.append(Finding("not-checked", "images", "the dataset has none"))
    quarantine = _quarantine(dataset, findings)
    try:
        write_quarantine(dataset.folder, quarantine)
    except OSError as error:
        findings.append(Finding("not-checked", "quarantine.json", f"not written: {error.strerror or error}"))
    return CheckReport(dataset.folder, tuple(findings), quarantine)


def print_report(report: CheckReport) -> None:
    """Print a line for each kind of finding with an example, and the size of the quarantine."""
    counts = report.counts()
    for kind, description in (PROBLEMS | NOTES).items():
        if kind in counts:
            example = next(one for one in report.findings if one.kind == kind)
            level = "problem" if kind in PROBLEMS else "note"
            print(f"{level}: {kind} ({counts[kind]:,}): {description}")
            print(visible(f"  for example {example.subject}: {example.detail}"))
    bad = report.quarantine
    if bad.images or bad.captions:
        print(f"{len(bad.images):,} images and {len(bad.captions):,} captions are in quarantine.json")
    print("no problems" if report.is_clean else "problems were found; use --json to list all findings")


def _check_files(dataset: Dataset, moved: str | None) -> Iterator[Finding]:
    expected = dict(dataset.manifest.sha256)
    if moved is None:
        expected |= {one.path: one.sha256 for one in dataset.manifest.images if one.sha256 is not None}
    for name, digest in expected.items():
        path = dataset.folder / name
        if not path.exists():
            yield Finding("changed-file", name, "the file does not exist")
        elif sha256_of(path) != digest:
            yield Finding("changed-file", name, "the sha256 differs from the one in manifest.json")
    for name, files in dataset.manifest.features.items():
        yield from _check_extracted(dataset.folder / "features" / name, files)


def _check_extracted(folder: Path, splits: Iterable[str]) -> Iterator[Finding]:
    """Compare the features that ``bcls data features`` wrote with their checksums; imported features have none."""
    path = folder / "manifest.json"
    if not path.exists():
        return
    hint = f"delete {folder} and extract the features again"
    try:
        content = read_json(path)
        check_shape(str(path), content, {"splits": {str: {"sha256": str}}}, hint)
    except ValueError as error:
        yield Finding("changed-file", f"features/{folder.name}/{path.name}", str(error))
        return
    for split in splits:
        file = folder / f"{split}.npy"
        if split in content["splits"] and file.exists() and sha256_of(file) != content["splits"][split]["sha256"]:
            detail = f"the sha256 differs from the one in {path}; {hint}"
            yield Finding("changed-file", f"features/{folder.name}/{file.name}", detail)


def _quarantine(dataset: Dataset, findings: Sequence[Finding]) -> Quarantine:
    """Collect the images and captions with problems; a file that cannot be read concerns no single image."""
    known = set(dataset.image_ids)
    images: dict[str, str] = {}
    captions: dict[str, str] = {}
    for one in findings:
        if one.kind == "empty-caption":
            captions[one.subject] = f"{one.kind}: {one.detail}"
        elif one.is_problem and one.kind != "changed-file" and one.subject in known:
            images.setdefault(one.subject, f"{one.kind}: {one.detail}")
    return Quarantine(images, captions)


def check_captions(dataset: Dataset) -> Iterator[Finding]:
    """Find empty, repeated, shared and long captions, and images without captions."""
    captioned = {caption.image_id for caption in dataset.captions}
    for image in dataset.images:
        if image.image_id not in captioned:
            yield Finding("image-without-captions", image.image_id, f"in {image.split}")
    training = {_normalize(caption.text) for caption in dataset.captions if caption.split == "train"}
    seen: dict[tuple[str, str], str] = {}
    for caption in dataset.captions:
        text = _normalize(caption.text)
        if all(unicodedata.category(one).startswith(_NO_WORDS) for one in text):
            yield Finding("empty-caption", caption.caption_id, f"of image {caption.image_id}, {caption.text[:20]!r}")
            continue
        first = seen.setdefault((caption.image_id, text), caption.caption_id)
        if first != caption.caption_id:
            yield Finding("repeated-caption", caption.caption_id, f"same text as {first}")
        if caption.split != "train" and text in training:
            yield Finding("shared-caption", caption.caption_id, f"in {caption.split}: {caption.text[:80]!r}")
        if len(caption.text) > _MAX_CAPTION:
            yield Finding("long-caption", caption.caption_id, f"{len(caption.text)} characters")


def _normalize(text: str) -> str:
    """Remove case, outer punctuation and repeated spaces."""
    return " ".join(text.lower().split()).strip(" .!?,;:\"'-")


def check_features(dataset: Dataset) -> Iterator[Finding]:
    """Find features that are missing, not finite or zero."""
    for name, files in dataset.manifest.features.items():
        for split in dataset.splits:
            if split not in files:
                yield Finding("not-checked", f"{name}/{split}", "no features for this split")
                continue
            part = dataset.split(split)
            try:
                features = part.features(name)
            except (ValueError, OSError) as error:
                yield Finding("bad-features", f"{name}/{split}", str(error))
                continue
            for row, image in enumerate(part.image_ids):
                # An image gives one finding of a kind, not one for every view.
                found: dict[str, str] = {}
                for kind, detail in _check_views(name, features, row):
                    found.setdefault(kind, detail)
                yield from (Finding(kind, image, detail) for kind, detail in found.items())


def _check_views(name: str, features: Features, row: int) -> Iterator[tuple[str, str]]:
    """Yield the kind and the details of each finding about the features of an image."""
    for view in range(features.views):
        what = f"{name} of view {view}" if view else name
        values = features.take([row], view).reshape(-1, features.shape[-1])
        valid = (values != 0).any(axis=1)[: features.regions(row, view)]
        if not np.isfinite(values).all():
            yield "bad-features", f"{what} are not finite"
        elif not valid.any():
            yield "bad-features", f"{what} are all zero"
        elif not valid.all():
            yield "empty-regions", f"{int((~valid).sum())} of {len(valid)} regions of {what}"


@dataclass(frozen=True)
class Fingerprint:
    """An image reduced to what identifies it: checksum of its file, difference hash, small gray thumbnail."""

    image: ImageRecord
    sha256: str
    hash: int
    thumbnail: npt.NDArray[np.uint8]


def fingerprint_images(dataset: Dataset, *, workers: int, max_pixels: int) -> tuple[list[Fingerprint], list[Finding]]:
    """Decode all images of a dataset in several threads.

    Args:
        dataset: The dataset.
        workers: Number of threads; 0 for one per processor.
        max_pixels: Images with more pixels count as damaged.

    Returns:
        Fingerprints of the readable images, in the order of the images, and the findings.
    """
    prints: list[Fingerprint] = []
    findings: list[Finding] = []
    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    try:
        read = pool.map(partial(_fingerprint, dataset, max_pixels), dataset.images)
        for one, found in track("reading images", read, len(dataset.images)):
            prints += [one] if one is not None else []
            findings += found
    finally:
        pool.shutdown(cancel_futures=True)
    return prints, findings


def _fingerprint(dataset: Dataset, max_pixels: int, image: ImageRecord) -> tuple[Fingerprint | None, list[Finding]]:
    try:
        file = dataset.file_of(image.image_id)
        content = dataset.read_bytes(image.image_id)
        pixels, file_format, frames = decode_with_format(content, file, max_pixels=max_pixels)
    except OSError as error:
        if error.errno not in _PROPERTIES_OF_A_FILE:
            raise
        return None, [Finding("missing-image", image.image_id, str(error.strerror or error))]
    except ValueError as error:
        return None, [Finding("damaged-image", image.image_id, str(error))]
    notes = []
    # An MPO file is a JPEG file with a second image.
    stated = Image.registered_extensions().get(PurePosixPath(file).suffix.lower())
    if stated != file_format.replace("MPO", "JPEG"):
        notes.append(Finding("wrong-extension", image.image_id, f"{file} is a {file_format} file"))
    # The second frame of an MPO file is a preview or the other image of a stereo pair.
    if frames > 1 and file_format != "MPO":
        notes.append(Finding("animated", image.image_id, f"{file} has {frames} frames"))
    thumbnail = pixels.convert("L").resize((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BOX)
    digest = hashlib.sha256(content).hexdigest()
    return Fingerprint(image, digest, difference_hash(pixels), np.asarray(thumbnail)), notes


def difference_hash(image: Image.Image) -> int:
    """Return 64 bits that encode where a small gray copy gets brighter from left to right.

    Example:
        >>> difference_hash(Image.new("RGB", (40, 30), "red"))
        0
    """
    gray = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    return int.from_bytes(np.packbits(gray[:, 1:] > gray[:, :-1]).tobytes(), "big")


def duplicate_images(prints: Sequence[Fingerprint]) -> Iterator[Finding]:
    """Find images with equal files; the subject is the image that training should not use."""
    groups = defaultdict(list)
    for one in prints:
        groups[one.sha256].append(one)
    for group in groups.values():
        kept = max(group, key=_priority)
        for one in group:
            if one.image.split != kept.image.split:
                yield _duplicate("duplicate-image", "same file as", one, kept)
            elif one is not kept:
                detail = f"same file as {kept.image.image_id} in {one.image.split}"
                yield Finding("repeated-image", one.image.image_id, detail)


def near_duplicates(prints: Sequence[Fingerprint], max_bits: int) -> Iterator[Finding]:
    """Find images of different splits that look the same although their files differ.

    Their difference hashes differ in at most ``max_bits`` bits, and their thumbnails correlate. Images of a single
    color are not compared.
    """
    compared = [one for one in prints if one.thumbnail.std() > _MIN_CONTRAST]
    splits = np.unique([one.image.split for one in compared], return_inverse=True)[1]
    hashes = np.array([one.hash for one in compared], dtype=np.uint64)
    for first, second in near_pairs(hashes, splits.astype(np.int64), max_bits):
        one, other = compared[first], compared[second]
        correlation = np.corrcoef(one.thumbnail.ravel(), other.thumbnail.ravel())[0, 1]
        if one.sha256 != other.sha256 and correlation >= _MIN_CORRELATION:
            yield _duplicate("near-duplicate-image", "looks like", one, other)


def near_pairs(hashes: npt.NDArray[np.uint64], groups: npt.NDArray[np.int64], max_bits: int) -> list[tuple[int, int]]:
    """Return the pairs of different groups whose hashes differ in at most ``max_bits`` bits, in order.

    With bits as -1 and 1, the dot product of two hashes is 64 minus twice the number of different bits.

    Example:
        >>> near_pairs(np.array([0, 7, 255, 1], dtype=np.uint64), np.array([0, 1, 1, 0]), 3)
        [(0, 1), (1, 3)]
    """
    bits = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1).astype(np.float32) * 2 - 1
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(bits), _BLOCK):
        block = slice(start, start + _BLOCK)
        near = bits[block] @ bits[start:].T >= 64 - 2 * max_bits
        near &= groups[block, None] != groups[None, start:]
        pairs += [(start + int(row), start + int(column)) for row, column in np.argwhere(np.triu(near, 1))]
    return pairs


def _duplicate(kind: str, how: str, one: Fingerprint, other: Fingerprint) -> Finding:
    removed, kept = sorted((one, other), key=_priority)
    detail = f"in {removed.image.split}, {how} {kept.image.image_id} in {kept.image.split}"
    return Finding(kind, removed.image.image_id, detail)


def _priority(one: Fingerprint) -> tuple[int, str]:
    """Rank the split that keeps a shared image: test sets stay complete, so that results remain comparable.

    The name decides between splits of the same kind, so that all shared images are removed from the same split.
    """
    split = one.image.split
    return (2 if split.startswith("test") else 0 if split in {"train", "restval"} else 1), split
