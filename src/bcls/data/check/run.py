"""The whole check, and the quarantine that comes of it."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcls._checks import check_whole, fail
from bcls._weights import sha256_of
from bcls.data.check.features import check_features
from bcls.data.check.findings import Finding
from bcls.data.check.leaks import near_pictures, same_pictures
from bcls.data.check.pictures import look_at_all
from bcls.data.check.settings import CheckSettings
from bcls.data.check.texts import check_texts
from bcls.data.dataset import Dataset, open_dataset
from bcls.data.images import open_store
from bcls.data.library import places
from bcls.data.quarantine import Quarantine, write_quarantine

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
