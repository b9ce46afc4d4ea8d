"""What a check can find, and how bad each kind is.

What a check can be told.

Captions that are empty, repeated or shared between splits, and images that have none.

Features that would poison training: not finite, or all zero.

Reads every picture once: can it be decoded, what is it, what does it look like?

Pictures that are in more than one split, exactly or nearly.

The whole check, and the quarantine that comes of it.

A check's report on the terminal.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from bcls._core.errors import check_whole, fail
from bcls._core.extras import sha256_of
from bcls._core.progress import progress
from bcls.data.dataset import Dataset, open_dataset, places
from bcls.data.features import Features
from bcls.data.image_files import open_store
from bcls.data.images import MAX_PIXELS, decode_with_format
from bcls.data.records import ImageRecord, Quarantine, write_quarantine

#: Kinds that make a check fail, with what the table says about them.
PROBLEMS = {
    "changed-file": "files that are not as they were imported",
    "missing-image": "images without a file",
    "damaged-image": "pictures that cannot be read",
    "image-without-captions": "images without captions",
    "empty-caption": "captions without a word",
    "same-picture": "pictures that are in two splits",
    "near-picture": "pictures that are nearly equal in two splits",
    "bad-features": "features that are missing, not finite or all zero",
}
#: Kinds that are only reported: real datasets have them, and they do little harm.
NOTES = {
    "wrong-ending": "pictures whose ending tells another format",
    "animated": "animations, of which the first frame is used",
    "repeated-picture": "pictures that are twice in one split",
    "repeated-caption": "captions that repeat one of the same image",
    "shared-caption": "captions outside train with a text of train",
    "long-caption": "captions of more than 1,000 characters",
    "empty-regions": "images with some regions all zero",
    "not-checked": "parts that were not checked",
}


class Finding(NamedTuple):
    """Something that was found: its kind, the image, caption or file it is about, and what is the matter."""

    kind: str
    subject: str
    detail: str

    @property
    def is_problem(self) -> bool:
        """Whether it makes the check fail."""
        return self.kind in PROBLEMS


@dataclass(frozen=True)
class CheckSettings:
    """Flags of ``bcls data check``."""

    images: str | None = None
    """Where the pictures are now, if they have moved since the import."""
    workers: int = 0
    """Threads that read pictures; 0 for one a processor."""
    max_pixels: int = MAX_PIXELS
    """Pictures with more pixels are refused unread."""
    near: int = 4
    """Bits of 64 in which the hashes of two nearly equal pictures may differ, at most 8; -1 to leave that out."""
    strict: bool = False
    """Exit with 1 for notes as well."""
    json: bool = False
    """Print everything that was found as JSON."""


_LONG = 1000


def check_texts(dataset: Dataset) -> Iterator[Finding]:
    """Look at every caption."""
    captioned = {caption.image_id for caption in dataset.captions}
    for image in dataset.images:
        if image.image_id not in captioned:
            yield Finding("image-without-captions", image.image_id, f"in {image.split}")
    trained = {_plain(caption.text) for caption in dataset.captions if caption.split == "train"}
    seen: dict[tuple[str, str], str] = {}
    for caption in dataset.captions:
        text = _plain(caption.text)
        if not text:
            yield Finding("empty-caption", caption.caption_id, f"of image {caption.image_id}, {caption.text[:20]!r}")
            continue
        first = seen.setdefault((caption.image_id, text), caption.caption_id)
        if first != caption.caption_id:
            yield Finding("repeated-caption", caption.caption_id, f"the same text as {first}")
        if caption.split != "train" and text in trained:
            yield Finding("shared-caption", caption.caption_id, f"in {caption.split}: {caption.text[:80]!r}")
        if len(caption.text) > _LONG:
            yield Finding("long-caption", caption.caption_id, f"{len(caption.text)} characters")


def _plain(text: str) -> str:
    """The words alone: without case, outer punctuation and repeated spaces."""
    return " ".join(text.lower().split()).strip(" .!?,;:\"'-")


_BLOCK = 256


def check_features(dataset: Dataset) -> Iterator[Finding]:
    """Read every feature file of a dataset once."""
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
            yield from _rows(part, name, features)


def _rows(dataset: Dataset, name: str, features: Features) -> Iterator[Finding]:
    for start in range(0, len(features), _BLOCK):
        places = range(start, min(start + _BLOCK, len(features)))
        told: set[tuple[str, str]] = set()  # a picture that cannot be read is one finding, not one a view
        for view in range(features.views):
            for finding in _view(dataset, name, features, places, view):
                if (finding.kind, finding.subject) not in told:
                    told.add((finding.kind, finding.subject))
                    yield finding


def _view(dataset: Dataset, name: str, features: Features, places: range, view: int) -> Iterator[Finding]:
    what = f"{name} of view {view}" if view else name
    block = features.take(places, view)
    block = block.reshape(len(block), -1, block.shape[-1])
    finite = np.asarray(np.isfinite(block).all(axis=(1, 2)))
    filled = np.asarray((block != 0).any(axis=2))
    for row, place in enumerate(places):
        image = dataset.image_ids[place]
        real = filled[row][: features.regions(place, view)]
        if not finite[row]:
            yield Finding("bad-features", image, f"{what} are not finite")
        elif not real.any():
            yield Finding("bad-features", image, f"{what} are all zero")
        elif not real.all():
            yield Finding("empty-regions", image, f"{int((~real).sum())} of {len(real)} regions of {what}")


#: Endings that go with a format, as Pillow names it.
_ENDINGS = {
    "JPEG": {".jpg", ".jpeg"},
    "MPO": {".jpg", ".jpeg"},
    "PNG": {".png"},
    "WEBP": {".webp"},
    "GIF": {".gif"},
    "BMP": {".bmp"},
    "TIFF": {".tif", ".tiff"},
}
#: Side of the grey thumbnail that confirms what the hash suggests.
SIDE = 16


@dataclass(frozen=True)
class Look:
    """What a picture looks like: checksum of its file, difference hash, a small grey copy."""

    image: ImageRecord
    sha256: str
    hash: int
    thumbnail: npt.NDArray[np.uint8]


def look_at_all(dataset: Dataset, *, workers: int, max_pixels: int) -> tuple[list[Look], list[Finding]]:
    """Read the pictures of a dataset, several at a time.

    Args:
        dataset: The dataset.
        workers: Threads; 0 for one a processor.
        max_pixels: Pictures with more pixels are refused.

    Returns:
        The looks of those that can be read, in the order of the images, and what was found.
    """
    looks: list[Look] = []
    findings: list[Finding] = []

    def look(image: ImageRecord) -> tuple[Look | None, list[Finding]]:
        return _look(dataset, image, max_pixels)

    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    try:
        with progress("reading pictures", len(dataset.images)) as step:
            for done, (seen, found) in enumerate(pool.map(look, dataset.images), start=1):
                looks += [seen] if seen is not None else []
                findings += found
                step(done)
    finally:
        pool.shutdown(cancel_futures=True)
    return looks, findings


def difference_hash(image: Image.Image) -> int:
    """64 bits that say where a small grey copy gets brighter from left to right.

    Example:
        >>> difference_hash(Image.new("RGB", (40, 30), "red"))
        0
    """
    grey = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    return int.from_bytes(np.packbits(grey[:, 1:] > grey[:, :-1]).tobytes(), "big")


def _look(dataset: Dataset, image: ImageRecord, max_pixels: int) -> tuple[Look | None, list[Finding]]:
    try:
        file = dataset.file_of(image.image_id)
        content = dataset.read_bytes(image.image_id)
    except FileNotFoundError as error:  # other errors are the machine's and say nothing about the picture
        return None, [Finding("missing-image", image.image_id, str(error.strerror or error))]
    except ValueError as error:
        return None, [Finding("damaged-image", image.image_id, str(error))]
    try:
        picture, file_format, frames = decode_with_format(content, file, max_pixels=max_pixels)
    except ValueError as error:
        return None, [Finding("damaged-image", image.image_id, str(error))]
    thumbnail = picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    digest = hashlib.sha256(content).hexdigest()
    look = Look(image, digest, difference_hash(picture), np.asarray(thumbnail))
    return look, list(_oddities(image, file, file_format, frames))


def _oddities(image: ImageRecord, file: str, file_format: str, frames: int) -> Iterator[Finding]:
    ending = PurePosixPath(file).suffix.lower()
    if ending not in _ENDINGS.get(file_format, {ending}):
        yield Finding("wrong-ending", image.image_id, f"{file} is a {file_format} file")
    # The second picture of an MPO file is a preview or the other eye's view.
    if frames > 1 and file_format != "MPO":
        yield Finding("animated", image.image_id, f"{file} has {frames} frames")


#: Least correlation of two grey thumbnails that count as one picture.
_ALIKE = 0.95
#: A thumbnail with less contrast than this has nothing to compare.
_FLAT = 4.0
_BITS = 64
_ROWS = 1024
_ONES = np.array([bin(number).count("1") for number in range(1 << 16)], dtype=np.uint8)


def same_pictures(looks: Sequence[Look]) -> Iterator[tuple[Finding, str]]:
    """Pictures with equal bytes, each with the id of the image that training should do without."""
    groups: dict[str, list[Look]] = {}
    for look in looks:
        groups.setdefault(look.sha256, []).append(look)
    for group in groups.values():
        keeper = max(group, key=_rank)
        for look in group:
            if look.image.split != keeper.image.split:
                yield _leak("same-picture", "the same file as", look, keeper)
            elif look is not keeper:
                detail = f"the same file as {keeper.image.image_id} in {look.image.split}"
                yield Finding("repeated-picture", look.image.image_id, detail), ""


def near_pictures(looks: Sequence[Look], most: int) -> Iterator[tuple[Finding, str]]:
    """Pictures of different splits that look alike though their bytes differ.

    Their difference hashes differ in at most ``most`` bits, and small grey copies correlate. Pictures of one flat
    colour are left out: they have nothing to compare.

    Args:
        looks: The pictures.
        most: Bits that may differ.
    """
    lively = [look for look in looks if look.thumbnail.std() > _FLAT]
    splits = np.unique([look.image.split for look in lively], return_inverse=True)[1]
    hashes = np.array([look.hash for look in lively], dtype=np.uint64)
    for one, other in near_pairs(hashes, splits.astype(np.int64), most):
        first, second = lively[one], lively[other]
        if first.sha256 != second.sha256 and _correlation(first, second) >= _ALIKE:
            yield _leak("near-picture", "looks like", first, second)


def near_pairs(hashes: npt.NDArray[np.uint64], groups: npt.NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Pairs of different groups whose hashes differ in at most ``most`` bits, in order.

    If the bits are cut into ``most + 1`` bands, two such hashes agree in one of them, so only hashes with a band in
    common are compared.

    Example:
        >>> near_pairs(np.array([0, 7, 255, 1], dtype=np.uint64), np.array([0, 1, 1, 0]), 3)
        [(0, 1), (1, 3)]
    """
    edges = np.linspace(0, _BITS, most + 2).astype(np.uint64)
    found: set[tuple[int, int]] = set()
    for low, high in pairwise(edges):
        mask = np.uint64((1 << int(high - low)) - 1)
        band = (hashes >> low) & mask
        order = np.argsort(band, kind="stable")
        starts = np.flatnonzero(np.diff(band[order])) + 1
        for bucket in np.split(order, starts):
            if len(bucket) > 1:
                found.update(_compare(bucket, hashes, groups, most))
    return sorted(found)


def _compare(
    bucket: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64], groups: npt.NDArray[np.int64], most: int
) -> Iterator[tuple[int, int]]:
    bucket = np.sort(bucket)
    for start in range(0, len(bucket), _ROWS):  # in blocks, since a common band may hold many
        rows = bucket[start : start + _ROWS]
        differ = np.ascontiguousarray(hashes[rows][:, None] ^ hashes[bucket][None, :])
        bits = _ONES[differ.view(np.uint16).reshape(*differ.shape, 4)].sum(axis=-1)
        near = (bits <= most) & (groups[rows][:, None] != groups[bucket][None, :]) & (rows[:, None] < bucket[None, :])
        for row, column in zip(*np.nonzero(near), strict=True):
            yield int(rows[row]), int(bucket[column])


def _leak(kind: str, how: str, one: Look, other: Look) -> tuple[Finding, str]:
    loser, keeper = sorted((one, other), key=_rank)
    detail = f"in {loser.image.split}, {how} {keeper.image.image_id} in {keeper.image.split}"
    return Finding(kind, loser.image.image_id, detail), loser.image.image_id


def _rank(look: Look) -> tuple[int, str]:
    """Which split keeps a picture that two have: test sets stay whole, so that figures stay comparable.

    The name decides between two of a kind, so that every picture that they share goes from the same one.
    """
    split = look.image.split
    return (2 if split.startswith("test") else 0 if split in {"train", "restval"} else 1), split


def _correlation(one: Look, other: Look) -> float:
    return float(np.corrcoef(one.thumbnail.ravel(), other.thumbnail.ravel())[0, 1])


#: Kinds that put their image, or their caption, into quarantine.
_BAD_IMAGES = frozenset({"missing-image", "damaged-image", "image-without-captions", "bad-features"})
_BAD_CAPTIONS = frozenset({"empty-caption"})


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes:
        folder: The dataset.
        findings: Everything, problems and notes.
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
        """How often each kind was found."""
        return dict(Counter(finding.kind for finding in self.findings))

    def as_json(self) -> dict[str, Any]:
        """All of it, in types that JSON knows."""
        return {
            "folder": str(self.folder),
            "clean": self.is_clean,
            "counts": self.counts(),
            "quarantined": {"images": len(self.quarantine.images), "captions": len(self.quarantine.captions)},
            "findings": [{**one._asdict(), "problem": one.is_problem} for one in self.findings],
        }


def check_dataset(folder: str | Path, settings: CheckSettings | None = None) -> Report:
    """Read everything in a dataset once, and write ``quarantine.json`` beside it.

    Of pictures that two splits share, the training split's goes into quarantine, and test sets stay whole.

    Args:
        folder: The dataset.
        settings: How; the defaults of :class:`CheckSettings` when left out.

    Returns:
        What was found.

    Raises:
        ValueError: The folder is no dataset that can be opened, none of its pictures is there, or a setting is wrong.
        OSError: The images are not where the manifest says.
    """
    settings = settings or CheckSettings()
    workers = check_whole("workers", settings.workers, least=0)
    max_pixels = check_whole("max_pixels", settings.max_pixels, least=1)
    near = check_whole("near", settings.near, least=-1)
    if near > 8:
        fail("near", "at most 8 bits", near, "more would call most pictures alike")
    dataset = open_dataset(folder, images=settings.images)
    findings = [*_changed(dataset, settings.images), *check_texts(dataset), *check_features(dataset)]
    doomed: dict[str, str] = {}
    if dataset.manifest.images or settings.images:
        _probe(dataset, settings.images)
        looks, found = look_at_all(dataset, workers=workers, max_pixels=max_pixels)
        if found and all(one.kind == "missing-image" for one in found) and len(found) == len(dataset.images):
            # They are elsewhere; a quarantine of everything would hide that from training.
            expected = f"pictures of the {len(found)} images of {dataset.folder}"
            fail("--images", expected, f"none of them ({found[0].detail})", "say where they are now")
        findings += found
        leaks = [*same_pictures(looks), *(near_pictures(looks, near) if near >= 0 else ())]
        findings += [finding for finding, _ in leaks]
        doomed = {image: f"{finding.kind}: {finding.detail}" for finding, image in leaks if image}
    else:
        findings.append(Finding("not-checked", "pictures", "the dataset has none"))
    quarantine = _quarantine(dataset, findings, doomed)
    try:
        write_quarantine(dataset.folder, quarantine)
    except OSError as error:
        findings.append(Finding("not-checked", "quarantine.json", f"not written: {error.strerror or error}"))
    return Report(dataset.folder, tuple(findings), quarantine)


def _changed(dataset: Dataset, moved: str | None) -> list[Finding]:
    stated = dict(dataset.manifest.sha256)
    if moved is None:
        stated |= {one.path: one.sha256 for one in dataset.manifest.images if one.sha256 is not None}
    findings = []
    for name, digest in stated.items():
        path = dataset.folder / name
        if not path.exists():
            findings.append(Finding("changed-file", name, "the file is gone"))
        elif sha256_of(path) != digest:
            findings.append(Finding("changed-file", name, "another sha256 than in manifest.json"))
    return findings


def _probe(dataset: Dataset, moved: str | None) -> None:
    """Open each place with pictures once: one error for an archive that is gone or refused, not one an image."""
    paths = tuple(dataset.folder / one.path for one in dataset.manifest.images)
    for path in paths if moved is None else dict.fromkeys(places(paths, Path(moved))):
        open_store(path).names()


def _quarantine(dataset: Dataset, findings: list[Finding], doomed: dict[str, str]) -> Quarantine:
    known = set(dataset.image_ids)
    images = {
        one.subject: f"{one.kind}: {one.detail}" for one in findings if one.kind in _BAD_IMAGES and one.subject in known
    }
    captions = {one.subject: f"{one.kind}: {one.detail}" for one in findings if one.kind in _BAD_CAPTIONS}
    return Quarantine({**doomed, **images}, captions)


def print_report(report: Report) -> None:
    """Print a line for each kind that was found, with an example, and what went into quarantine."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    counts = report.counts()
    if counts:
        table = Table("", "found", title=f"check of {escape(str(report.folder))}")
        table.add_column("number", justify="right")
        table.add_column("for example", overflow="fold")
        for kind, what in (PROBLEMS | NOTES).items():
            if kind in counts:
                example = next(one for one in report.findings if one.kind == kind)
                level = "[red]problem[/red]" if kind in PROBLEMS else "note"
                table.add_row(level, what, f"{counts[kind]:,}", escape(f"{example.subject}: {example.detail}"))
        console.print(table)
    bad = report.quarantine
    if bad.images or bad.captions:
        console.print(f"{len(bad.images):,} images and {len(bad.captions):,} captions are in quarantine.json")
    console.print("no problems" if report.is_clean else "problems were found; --json lists them all", style="bold")
