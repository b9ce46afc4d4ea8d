"""Two models side by side for one query, as in the figures of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from bcls.search.service import CaptionHit, Hit, Service
from bcls.training.run_folder import CHECKPOINTS
from bcls.web.api import site_of
from bcls.web.asked import asked, photo_of
from bcls.web.facts import PhotoFacts, facts_of
from bcls.web.labels import WRONG, QueryLabels
from bcls.web.problem import ProblemError, is_part
from bcls.web.rendering import html

routes = APIRouter(include_in_schema=False)
#: Results that are shown, and among how many the right one is looked for.
SHOWN, LOOKED = 10, 100


@dataclass(frozen=True)
class Marked:
    """A result with what is known about it.

    Attributes:
        hit: The photo or caption.
        label: The pseudo label of the pair, where there are captions and an encoder.
        truth: Whether it is the query's own.
        wrong: Whether the label says that it is plainly wrong.
        photo: Number of its photo in the first index, which pictures are shown from; ``None`` if it is not there.
    """

    hit: Hit | CaptionHit
    label: float | None
    truth: bool
    photo: int | None

    @property
    def wrong(self) -> bool:
        """Whether the label says that it is plainly wrong."""
        return not self.truth and self.label is not None and self.label < WRONG


@dataclass(frozen=True)
class Column:
    """The answer of one model.

    Attributes:
        name: The model's name.
        results: The first ones.
        place: Of the first right result, from 1; ``None`` if it is not among those looked at.
        looked: How many were looked at.
    """

    name: str
    results: list[Marked]
    place: int | None
    looked: int


@routes.get("/compare")
def compare_page(
    request: Request, q: str = "", photo: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None
) -> Response:
    """The compare view: for a text, or for the captions of a photo."""
    site = site_of(request)
    if site.other is None:
        raise ProblemError(404, "there is no second index: start with `bcls serve INDEX --compare INDEX2`")
    values: dict[str, Any] = {"q": q, "photo": None, "columns": [], "labels": site.labels, "wrong": WRONG}
    with asked():
        if photo is not None:
            asked_photo = facts_of(site.service, photo_of(site.service, photo))
            values["photo"] = asked_photo
            values["columns"] = [_captions(site.service, one, site.labels, asked_photo) for one in _both(site)]
        elif q.strip():
            values["columns"] = [_photos(site.service, one, site.labels, q) for one in _both(site)]
    return html(request, "_compare.html" if is_part(request) else "compare.html", values)


def _both(site: Any) -> tuple[Service, Service]:
    return site.service, site.other


def _photos(first: Service, service: Service, labels: QueryLabels | None, query: str) -> Column:
    """Photos for a text; one that has the text for a caption is the ground truth."""
    hits = service.search(query, _looked(service)).hits
    own = _plain(query)
    truths = [any(_plain(caption) == own for caption in hit.captions) for hit in hits]
    shown = hits[:SHOWN]
    found = _labels(labels, [(hit.captions, query) for hit in shown])
    results = [
        Marked(hit, label, truth, hit.number if service is first else first.number_of(hit.name))
        for hit, label, truth in zip(shown, found, truths, strict=False)
    ]
    return Column(_name(service), results, _first(truths), len(hits))


def _captions(first: Service, service: Service, labels: QueryLabels | None, photo: PhotoFacts) -> Column:
    """Captions for a photo; its own are the ground truth."""
    number = photo.number if service is first else service.number_of(photo.name)
    if number is None:
        raise ProblemError(404, f"{photo.name} is not in the second index: index the same photos with both models")
    hits = service.captions_for(number, _looked(service)).hits
    truths = [hit.number == number for hit in hits]
    shown = hits[:SHOWN]
    found = _labels(labels, [(photo.captions, hit.text) for hit in shown])
    results = [Marked(hit, label, truth, photo.number) for hit, label, truth in zip(shown, found, truths, strict=False)]
    return Column(_name(service), results, _first(truths), len(hits))


def _labels(labels: QueryLabels | None, pairs: Sequence[tuple[Sequence[str], str]]) -> list[float | None]:
    return [None] * len(pairs) if labels is None else labels.of(pairs)


def _first(truths: Sequence[bool]) -> int | None:
    return truths.index(True) + 1 if True in truths else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(" .")


def _looked(service: Service) -> int:
    """Among how many results the right one is looked for: no more than a whole model ranks again anyway."""
    again = service.settings.rerank if service.index.manifest.cross else 0
    return max(SHOWN, again) if again else LOOKED


def _name(service: Service) -> str:
    """What a model is called: the last part of its name or the folder of its run, and the index that it made."""
    *before, last = service.index.manifest.model.rstrip("/").split("/")
    run = before[-2] if before[-1:] == [CHECKPOINTS] and len(before) > 1 else last
    return f"{run} ({service.index.folder.name})"
