"""What the losses rank first: which queries to show, and how they are shown."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

import numpy as np
import numpy.typing as npt

from bcls.demo.results import LOSSES, Run

Floats = npt.NDArray[np.float32]
Direction = Literal["i2t", "t2i"]

#: How many results of a query are shown and judged.
SHOWN = 5
#: From this true relevance on, a result nearly fits the query.
NEAR = 0.6
#: Below this true relevance, a result is plainly wrong.
WRONG = 0.2
# Pictures up to this side are kept as they are; grain makes larger ones heavy, and nothing is shown larger than twice.
_SMALL, _LARGEST = 96, 192


@dataclass(frozen=True)
class JudgedSplit:
    """A split of N pictures and C captions with both kinds of relevance of all pairs."""

    pixels: npt.NDArray[np.uint8]
    """(N, H, W, 3) pictures."""
    texts: list[str]
    """C captions."""
    image_of_caption: npt.NDArray[np.int64]
    """(C,) picture that each caption was written for."""
    pseudo: Floats
    """(N, C) pseudo labels."""
    true: Floats
    """(N, C) true relevance."""


def top(similarity: Floats, query: int, k: int, direction: Direction) -> npt.NDArray[np.int64]:
    """Return the k best results of one query, ties to the lower index.

    Args:
        similarity: (N, C) scores.
        query: Row of a picture (``"i2t"``) or column of a caption (``"t2i"``).
        k: How many; all where there are fewer.
        direction: What asks for what.

    Example:
        >>> scores = np.array([[0.1, 0.9, 0.9], [0.3, 0.2, 0.1]], dtype=np.float32)
        >>> top(scores, 0, 2, "i2t").tolist(), top(scores, 0, 2, "t2i").tolist()
        ([1, 2], [1, 0])
    """
    scores = similarity[query] if direction == "i2t" else similarity[:, query]
    return np.argsort(-scores, kind="stable")[:k].astype(np.int64)


def quality(similarity: Floats, true: Floats, direction: Direction) -> npt.NDArray[np.float64]:
    """Compute the mean true relevance of the first results of every query."""
    scores, labels = (similarity, true) if direction == "i2t" else (similarity.T, true.T)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :SHOWN]
    means: npt.NDArray[np.float64] = np.take_along_axis(labels, best, axis=1).mean(axis=1, dtype=np.float64)
    return means


def pick(similarities: Mapping[str, Floats], split: JudgedSplit, count: int, direction: Direction) -> list[int]:
    """Pick the queries on which the losses differ most, whichever of them is ahead.

    Queries with at least ``SHOWN`` results that fit or nearly fit come first, for elsewhere there is little to put in
    order; among these, the larger the gap between the highest and the lowest :func:`quality`, the earlier. No picture
    and no wording is shown twice.

    Args:
        similarities: (N, C) scores by loss.
        split: The test split.
        count: How many queries; fewer where there are not so many.
        direction: What asks for what.

    Returns:
        Rows (``"i2t"``) or columns (``"t2i"``).
    """
    by_loss = np.stack([quality(scores, split.true, direction) for scores in similarities.values()])
    # Sums over another order of the same results differ in the last digits, which must not decide.
    gap = (by_loss.max(axis=0) - by_loss.min(axis=0)).round(6)
    fitting = (split.true >= NEAR).sum(axis=1 if direction == "i2t" else 0)
    picked: list[int] = []
    seen: set[object] = set()
    for query in np.lexsort((-gap, fitting < SHOWN)).tolist():
        marks = {query} if direction == "i2t" else {int(split.image_of_caption[query]), split.texts[query]}
        if seen.isdisjoint(marks):
            picked.append(query)
            seen |= marks
    return picked[:count]


def section(runs: Sequence[Run], split: JudgedSplit) -> str:
    """Return the HTML of the gallery: four captions and two pictures, under every loss that has a run."""
    shown = _shown_runs(runs)
    scores = {loss: run.similarity for loss, run in shown.items()}
    captions, images = pick(scores, split, 4, "t2i"), pick(scores, split, 2, "i2t")
    rule = "the first"
    if len(scores) > 1:
        rule = (
            f"those where the mean true relevance of the first {SHOWN} results differs most between the losses, "
            "whichever is ahead. This shows them at their most different; the table has the average"
        )
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in shown.values()}))
    return f"""<section aria-labelledby="gallery">
<h2 id="gallery">What each loss ranks first</h2>
<p class="prose">Picked by rule, not by eye: among the queries with at least {SHOWN} results of true relevance
{NEAR} or more (and others only where these run out), {rule}. Rankings are those of seed {seeds}.</p>
<ul class="legend">
<li class="truth"><span class="badge">✓ match</span> ground truth</li>
<li class="wrong"><span class="badge">✗ wrong</span> true relevance below {WRONG}</li>
<li><b>[0.75]</b> pseudo label</li>
<li><b>true 0.80</b> true relevance</li>
</ul>
<h3>A caption asks for pictures</h3>
{"".join(_text_query(split, scores, caption) for caption in captions)}
<h3>A picture asks for captions</h3>
{"".join(_image_query(split, scores, image) for image in images)}
</section>"""


def _shown_runs(runs: Sequence[Run]) -> dict[str, Run]:
    """Choose one run a loss: with the seed of the first run of all, or where there is none, the loss's first."""
    by_loss = {loss: [run for run in runs if run.loss == loss] for loss in LOSSES}
    return {
        loss: next((run for run in own if run.seed == runs[0].seed), own[0]) for loss, own in by_loss.items() if own
    }


def _text_query(split: JudgedSplit, similarities: Mapping[str, Floats], caption: int) -> str:
    """Return the HTML of one caption and the pictures that each loss ranks first."""
    rows = []
    for loss, similarity in similarities.items():
        images = top(similarity, caption, SHOWN, "t2i")
        items = "".join(_picture_result(split, int(image), caption) for image in images)
        heading = _loss_heading(loss, float(split.true[images, caption].mean()))
        rows.append(f'<div class="ranking">{heading}<ol class="pictures">{items}</ol></div>')
    return f'<article class="query"><h4>“{escape(split.texts[caption])}”</h4>{"".join(rows)}</article>\n'


def _image_query(split: JudgedSplit, similarities: Mapping[str, Floats], image: int) -> str:
    """Return the HTML of one picture and the captions that each loss ranks first."""
    columns = []
    for loss, similarity in similarities.items():
        captions = top(similarity, image, SHOWN, "i2t")
        items = "".join(_caption_result(split, image, int(caption)) for caption in captions)
        heading = _loss_heading(loss, float(split.true[image, captions].mean()))
        columns.append(f'<div class="ranking">{heading}<ol class="captions">{items}</ol></div>')
    return (
        f'<article class="query image-query"><h4>Picture {image}</h4><div class="asked">{_img(split, image)}</div>'
        f'<div class="columns">{"".join(columns)}</div></article>\n'
    )


def _loss_heading(loss: str, mean: float) -> str:
    return (
        f'<h5 class="loss {loss}">{escape(LOSSES[loss])} <span class="mean">mean true relevance '
        f"<b>{mean:.2f}</b></span></h5>"
    )


def _picture_result(split: JudgedSplit, image: int, caption: int) -> str:
    kind, badge = _verdict(split, image, caption)
    return (
        f'<li class="{kind}"><figure>{_img(split, image)}'
        f"<figcaption>{_labels(split, image, caption)} {badge}</figcaption></figure></li>"
    )


def _caption_result(split: JudgedSplit, image: int, caption: int) -> str:
    kind, badge = _verdict(split, image, caption)
    labels = _labels(split, image, caption)
    return f'<li class="{kind}"><p>{escape(split.texts[caption])}</p><p class="labels">{labels} {badge}</p></li>'


def _verdict(split: JudgedSplit, image: int, caption: int) -> tuple[str, str]:
    """Class of a result and the badge that says the same to those who see no colour."""
    if int(split.image_of_caption[caption]) == image:
        return "truth", '<span class="badge"><span aria-hidden="true">✓</span> match</span>'
    if split.true[image, caption] < WRONG:
        return "wrong", '<span class="badge"><span aria-hidden="true">✗</span> wrong</span>'
    return "other", ""


def _labels(split: JudgedSplit, image: int, caption: int) -> str:
    pseudo, true = split.pseudo[image, caption], split.true[image, caption]
    return f'<span title="pseudo label">[{pseudo:.2f}]</span> <span title="true relevance">true {true:.2f}</span>'


def _img(split: JudgedSplit, image: int) -> str:
    """Return the picture inline; described by the first caption that was written for it."""
    from PIL import Image

    picture = Image.fromarray(split.pixels[image])
    picture.thumbnail((_LARGEST, _LARGEST))
    encoded = io.BytesIO()
    picture.save(encoded, format="WEBP", lossless=max(picture.size) <= _SMALL, quality=90)
    data = base64.b64encode(encoded.getvalue()).decode()
    own = np.flatnonzero(split.image_of_caption == image)
    alt = escape(split.texts[own[0]] if own.size else f"picture {image}")
    width, height = picture.size
    return f'<img src="data:image/webp;base64,{data}" alt="{alt}" width="{width}" height="{height}">'
