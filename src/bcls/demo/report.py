"""The page that the demo writes: one file with the table, the curves and a gallery."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import metadata, resources
from pathlib import Path

import bcls
from bcls._checks import fail
from bcls._files import write_whole
from bcls._page import frame
from bcls.demo.curves import COLOURS, curve_svgs
from bcls.demo.findings import findings
from bcls.demo.gallery import JudgedSplit, section
from bcls.demo.results import FIGURES, LOSSES, Run, Spread, summary

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
    return losses + resources.files("bcls.demo").joinpath("page.css").read_text(encoding="utf-8")


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
