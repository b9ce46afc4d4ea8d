"""What the losses rank first: which queries to show, and how they are shown.

The page that the demo writes: one file with the table, the curves and a gallery.
"""

import base64
import io
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import metadata, resources
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

import bcls
from bcls._core.errors import fail
from bcls._core.files import write_whole
from bcls.experiments.demo_results import COLOURS, FIGURES, LOSSES, Run, Spread, curve_svgs, findings, summary
from bcls.reports.html import frame

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


_COUNTS = {1: "one loss", 2: "two losses", 3: "three losses"}
_GROUPS = {"i2t": "Image → text", "t2i": "Text → image", "tau": "Agreement"}
_MEANT = {
    "train_loss": ("Training loss", "Each loss has its own scale: compare shapes, not heights."),
    "val_rsum": ("Validation RSUM", "Finding exactly the picture or caption that belongs to the query."),
    "val_tau_true": ("Validation τ true", "Ordering everything else as well, by how much of the caption holds."),
}
_READ = """<dl class="terms">
<dt>R@K</dt><dd>Share of queries, in percent, with the ground truth among the first K results. Image → text: a picture
asks for its captions, and any one of them counts. Text → image: a caption asks for its one picture.</dd>
<dt>RSUM</dt><dd>The sum of the six R@K, at most 600. Anything but the query’s own partner counts as wrong, however well
it fits.</dd>
<dt>τ pseudo</dt><dd>Kendall’s τ between the order of the results and the pseudo labels: 1 is the same order, 0 an
unrelated one, −1 the reverse. A pseudo label says how alike the captions are, judged from their text alone; it is what
BCLS learns from.</dd>
<dt>τ true</dt><dd>The same against the true relevance: how much of what the caption says holds of the picture. It is
known here because the pictures are drawn from a description, and no loss gets to see it.</dd>
</dl>"""
_NEXT = (
    ("More seeds, for a firmer ±:", "bcls demo --seeds 5 --out other"),
    ("More data and longer training, to see what stays:", "bcls demo --images 4000 --epochs 8"),
    (
        "The loss in your own training loop:",
        "from bcls.losses import BCLSLoss\n\nloss = BCLSLoss()\nloss(similarity, relevance, image_ids=ids)",
    ),
)


def write_report(
    path: Path, runs: Sequence[Run], split: JudgedSplit, settings: dict[str, object], seconds: float
) -> None:
    """Write the report, one HTML file that needs no other file and no network.

    Args:
        path: Where; the folder must exist.
        runs: The runs there are; losses and seeds may be missing.
        split: The test split that the runs were tested on.
        settings: Names and values to print at the end.
        seconds: How long the whole demo took.

    Raises:
        ValueError: There is no run of any known loss.
        MissingExtraError: matplotlib is not installed.
    """
    runs = [run for run in runs if run.loss in LOSSES]
    if not runs:
        fail("runs", f"at least one run of {', '.join(LOSSES)}", "none", "let at least one run of the demo finish")
    write_whole(path, _page(runs, split, settings, seconds))


def _page(runs: Sequence[Run], split: JudgedSplit, settings: dict[str, object], seconds: float) -> str:
    curves = curve_svgs(runs)
    losses = list(summary(runs))
    title = f"A small image-text model, trained the same way under {_COUNTS[len(losses)]}"
    plots = "".join(
        f"<figure>{curves[key]}<figcaption><b>{name}.</b> {meaning}</figcaption></figure>"
        for key, (name, meaning) in _MEANT.items()
    )
    found = "".join(f"<li>{escape(finding)}</li>" for finding in findings(runs))
    content = f"""<header>
<p class="kicker">bcls demo</p>
<h1>{title.replace("image-text", "<span>image-text</span>")}</h1>
<p class="lede">{escape(_lede(runs, split, seconds))}</p>
</header>
<section aria-labelledby="results">
<h2 id="results">Results</h2>
<ul class="findings">{found}</ul>
{_table(runs, split)}
</section>
<section aria-labelledby="course">
<h2 id="course">The course of training</h2>
<div class="plots">{plots}</div>
<p class="note">Lines are means over the seeds, bands reach from the lowest to the highest seed.</p>
</section>
{section(runs, split)}
<div class="two">
<section aria-labelledby="read"><h2 id="read">How to read this</h2>
{_READ}
</section>
<section aria-labelledby="next"><h2 id="next">What to try next</h2>
{"".join(f"<p>{text}</p><pre><code>{escape(code)}</code></pre>" for text, code in _NEXT)}
</section>
</div>
{_details(runs, settings)}"""
    return frame(f"{title} – bcls demo", content, _style())


def _style() -> str:
    light, dark = ("".join(f"--{loss}:{pair[shade]};" for loss, pair in COLOURS.items()) for shade in (0, 1))
    losses = f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    return losses + resources.files("bcls.reports").joinpath("demo.css").read_text(encoding="utf-8")


def _lede(runs: Sequence[Run], split: JudgedSplit, seconds: float) -> str:
    names = [LOSSES[loss] for loss in summary(runs)]
    images, captions = split.true.shape
    text = (
        f"One two-tower model learned to match drawn scenes with captions, under {_join(names)}, {_seeds(runs)} and "
        f"the same budget for each. The figures are from {images:,} pictures and {captions:,} captions that it never "
        f"saw. Everything took {_duration(seconds)}."
    )
    missing = [name for name in LOSSES.values() if name not in names]
    return text + (f" There is no finished run of {_join(missing)}." if missing else "")


def _table(runs: Sequence[Run], split: JudgedSplit) -> str:
    figures = summary(runs)
    groups: dict[str, list[str]] = {}
    for key, heading, _ in FIGURES:
        groups.setdefault(key.split("_")[0], []).append(heading)
    upper = lower = columns = ""
    for group, headings in groups.items():
        columns += f'<colgroup span="{len(headings)}"></colgroup>'
        if group in _GROUPS:
            upper += f'<th scope="colgroup" colspan="{len(headings)}">{_GROUPS[group]}</th>'
            # The group says the direction already.
            lower += "".join(
                f'<th scope="col">{heading.split(" i→t")[0].split(" t→i")[0]}</th>' for heading in headings
            )
        else:
            upper += f'<th scope="col" rowspan="2">{headings[0]}</th>'
    several = {loss: sum(run.loss == loss for run in runs) > 1 for loss in figures}
    cells = {loss: _cells(loss, figures, several[loss]) for loss in figures}
    rows = "".join(
        f'<tr><th scope="row" class="loss {loss}">{LOSSES[loss]}</th>{cells[loss]}</tr>\n' for loss in figures
    )
    images, captions = split.true.shape
    return (
        '<div class="scroll" role="region" aria-labelledby="figures" tabindex="0"><table class="figures">'
        f'<caption id="figures"><p>Test split of {images:,} pictures and {captions:,} captions; mean ± standard '
        f"deviation over {_seeds(runs)}, best mean in bold. Recalls in percent.</p></caption>\n"
        f"<colgroup><col></colgroup>{columns}"
        f'<thead><tr><th scope="col" rowspan="2">Loss</th>{upper}</tr>\n<tr>{lower}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(loss: str, figures: Mapping[str, Mapping[str, Spread]], several: bool) -> str:
    cells = ""
    for key, _, digits in FIGURES:
        spread = figures[loss][key]
        best = max(other[key].mean for other in figures.values())
        mean = f"{spread.mean:.{digits}f}"
        if len(figures) > 1 and mean == f"{best:.{digits}f}":
            mean = f"<strong>{mean}</strong>"
        deviation = f' <span class="dev">±&nbsp;{spread.deviation:.{digits}f}</span>' if several else ""
        cells += f"<td>{mean}{deviation}</td>"
    return cells


def _details(runs: Sequence[Run], settings: dict[str, object]) -> str:
    versions = {"bcls": bcls.__version__, "Python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("torch", "numpy", "pillow", "matplotlib")}
    pairs = "".join(
        f"<div><dt>{escape(str(name).replace('_', ' '))}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in (settings | versions).items()
    )
    rows = "".join(
        f'<tr><th scope="row" class="loss {run.loss}">{LOSSES[run.loss]}</th><td>{run.seed}</td>'
        f"<td>{run.test['rsum']:.1f}</td><td>{run.test['tau_true']:.3f}</td><td>{run.seconds:.1f}</td></tr>\n"
        for run in runs
    )
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("Loss", "Seed", "RSUM", "τ true", "Seconds"))
    return (
        f'<details><summary>Settings, versions and every run</summary><div class="inside"><dl>{pairs}</dl>\n'
        f"<table><thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div></details>"
    )


def _seeds(runs: Sequence[Run]) -> str:
    """Number of seeds, of each loss where they differ."""
    counts = {loss: sum(run.loss == loss for run in runs) for loss in summary(runs)}
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{LOSSES[loss]} {count}" for loss, count in counts.items())
        return f"{min(counts.values())} to {max(counts.values())} seeds ({each})"
    count = next(iter(counts.values()))
    return "one seed" if count == 1 else f"{count} seeds"


def _join(words: Iterable[str]) -> str:
    """Write a list as people do.

    Example:
        >>> _join(["a", "b", "c"])
        'a, b and c'
    """
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}\u00a0min {rest}\u00a0s" if minutes else f"{rest}\u00a0s"
