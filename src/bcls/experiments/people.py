"""Agreement of a model with the people who judged photos of Flickr8k, in CLIPScore's protocol."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.data import HumanRatings, flickr8k_crowdflower, flickr8k_expert
from bcls.evaluation import human_correlation

if TYPE_CHECKING:
    from bcls.data import Dataset

#: Files of judgements, how they are read, and the figure that CLIPScore prints of each.
_FILES = {
    "expert": ("ExpertAnnotations.txt", flickr8k_expert, "tau_c"),
    "crowd": ("CrowdFlowerAnnotations.txt", flickr8k_crowdflower, "tau_b"),
}
#: All judged images, those that settings may be chosen on, and those for reporting.
PARTS = ("judged", "choice", "report")


@dataclass(frozen=True)
class Judgements:
    """Judged pairs with the photos and captions that they are about."""

    ratings: Mapping[str, HumanRatings]
    """Rows by ``expert`` and ``crowd``."""
    photos: tuple[str, ...]
    """Every photo that was judged."""
    caption_ids: tuple[str, ...]
    """Every caption that was judged, as the judgements name it."""
    texts: tuple[str, ...]
    """Their texts."""
    choice: frozenset[str]
    """The photos that settings may be chosen on."""


def read_judgements(folder: str | Path, dataset: "Dataset", choice: Path | None) -> Judgements:
    """Read the judgements of Flickr8k.

    Args:
        folder: With ``ExpertAnnotations.txt`` and ``CrowdFlowerAnnotations.txt``.
        dataset: Flickr8k, whole: judged captions come from all of it.
        choice: List of file names, one a line, of the photos to choose on.

    Raises:
        ValueError: A file is missing or damaged, or the judgements are of another dataset.
        OSError: The list cannot be read.
    """
    found = {name: read(Path(folder) / file) for name, (file, read, _) in _FILES.items()}
    captions: dict[str, str] = {}
    seen: dict[str, int] = {}
    for caption in dataset.captions:
        turn = seen.get(caption.image_id, 0)
        seen[caption.image_id] = turn + 1
        captions[f"{caption.image_id}#{turn}"] = caption.text
    photos = sorted({photo for rows in found.values() for photo in rows.photos.tolist()})
    ids = sorted({caption for rows in found.values() for caption in rows.caption_ids.tolist()})
    lost = [one for one in photos if one not in seen] + [one for one in ids if one not in captions]
    if lost:
        got = f"{len(lost)} of others, such as {lost[0]!r}"
        fail("--judgements", f"judgements of {dataset.name}", got, "give those of the dataset")
    listed = frozenset() if choice is None else frozenset(choice.read_text(encoding="utf-8").split())
    unknown = sorted(listed - set(photos))
    if unknown:
        fail(str(choice), "photos that were judged", repr(unknown[0]), "draw the list anew")
    return Judgements(found, tuple(photos), tuple(ids), tuple(captions[one] for one in ids), listed)


def people_figures(
    judgements: Judgements,
    scores: Callable[[Sequence[str], Sequence[str]], NDArray[np.floating]],
    parts: Sequence[str] = PARTS,
) -> dict[str, float]:
    """Kendall's tau of a model's scores with the judgements.

    Args:
        judgements: What people said.
        scores: Gives ``(N, C)`` scores of photos by name and texts.
        parts: Which of :data:`PARTS`; the photos of ``choice`` alone are scored where nothing else is asked for.

    Returns:
        ``judged_expert_tau_c``, ``judged_crowd_tau_b`` and the same of each part; without a list of photos to choose
        on, of all judged photos alone.
    """
    wanted = [part for part in parts if judgements.choice or part == "judged"]
    photos = [one for one in judgements.photos if any(_inside(judgements, part, one) for part in wanted)]
    if not photos:
        return {}
    matrix = scores(photos, judgements.texts)
    row = {photo: number for number, photo in enumerate(photos)}
    column = {caption: number for number, caption in enumerate(judgements.caption_ids)}
    figures = {}
    for part in wanted:
        for name, rows in judgements.ratings.items():
            keep = [_inside(judgements, part, photo) for photo in rows.photos.tolist()]
            images = [row[photo] for photo in rows.photos[keep].tolist()]
            captions = [column[caption] for caption in rows.caption_ids[keep].tolist()]
            tau = _FILES[name][2]
            found = human_correlation(matrix[images, captions], rows.ratings[keep], resamples=0)
            figures[f"{part}_{name}_{tau}"] = found[tau]
    return figures


def _inside(judgements: Judgements, part: str, photo: str) -> bool:
    return part == "judged" or (photo in judgements.choice) == (part == "choice")
