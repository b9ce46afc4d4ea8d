"""Copies results of sweeps and writes docs/evidence.md: ``python -m scripts.evidence_page [SWEEP ...]``.

Metrics, settings and ranks (no weights) of the given folders of ``bcls sweep`` are first copied to
``results/flickr8k``. From that folder it always writes a short page with claims, tables and three plots, and
docs/evidence-details.md with all tables, tests and comparisons, with the values of the paper beside them.
"""

import json
import os
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bcls._core.files import write_whole
from bcls.experiments.claims import HELD, INCONCLUSIVE, NOT, PARTLY, Claim, check_claims, read_paper
from bcls.experiments.report import as_markdown, build
from bcls.experiments.results import RANKS, RESULTS, SWEEP, Summary, SummaryRow, read_results, summarize
from bcls.reports.blocks import Terms, Text, markdown_table
from bcls.reports.charts import COLORS, figure_file
from scripts import model_table

ROOT = Path(__file__).parents[1]
KEPT, PAPER, PAGE = ROOT / "results" / "flickr8k", ROOT / "results" / "paper.json", ROOT / "docs" / "evidence.md"
DETAILS, GALLERY, PLOTS = "evidence-details.md", "evidence-gallery.md", ROOT / "docs" / "images"
#: Explanations by claim: the part of the page that is written by hand.
REMARKS = KEPT / "remarks.json"
#: Columns of a table of losses on the short page: metric on the test split, heading, digits.
COLUMNS = (("rsum", "RSUM", 1), ("tau", "tau", 3), ("report_expert_tau_c", "experts", 3))
#: Groups of losses in the first plot, by the name of the loss.
GROUPS: dict[str, Callable[[str], bool]] = {
    "pairs alone": lambda loss: loss in PAIRS,
    "labels, no Kendall term": lambda loss: loss not in PAIRS and model_table.is_rival(loss),
    "Kendall term": lambda loss: not model_table.is_rival(loss) and loss != "bcls",
    "BCLS": lambda loss: loss == "bcls",
}
PAIRS = {"triplet", "triplet-hn", "triplet-sn", "infonce", "sigmoid"}
#: RSUM below the best one that the first plot shows.
WIDEST = 50
#: Least validation RSUM of the recipe for both goals.
LEAST_RSUM = 340.0


def keep(sweep: Path, kept: Path) -> Path:
    """Copy metrics, settings and ranks of a sweep, without paths of the machine.

    Args:
        sweep: A folder that ``bcls sweep`` wrote.
        kept: Folder that contains one folder for each sweep.

    Returns:
        The folder of the copy.
    """
    metadata, lines = read_results(sweep)
    folder = kept / metadata["name"]
    if folder.resolve() == sweep.resolve():
        sys.exit(f"{sweep}: expected a folder that `bcls sweep` wrote, got the copy of it")
    (folder / RANKS).mkdir(parents=True, exist_ok=True)
    needed = {f"{line['key']}-test.npz" for line in lines if "test" in line}
    for file in (sweep / RANKS).glob("*-test.npz"):
        if file.name in needed:
            shutil.copyfile(file, folder / RANKS / file.name)
    for file in (folder / RANKS).iterdir():
        if file.name not in needed:  # of a configuration that the sweep no longer has
            file.unlink()
    for line in lines:
        line["command"] = re.sub(r"(?<!\S)\S*/(\S+)", r"\1", line["command"])
    write_whole(folder / SWEEP, json.dumps(metadata, indent=1) + "\n")
    write_whole(folder / RESULTS, "".join(json.dumps(line) + "\n" for line in lines))
    return folder


def summaries(kept: Path) -> list[Summary]:
    """Read all kept sweeps; one that a newer sweep replaces no longer counts for the claims."""
    found = [summarize(path.parent) for path in sorted(kept.glob(f"*/{SWEEP}"))]
    names = {one.metadata["name"] for one in found}
    for one in found:
        if one.metadata["name"].removesuffix("-first") in names - {one.metadata["name"]}:
            one.metadata["claims"] = False
    return found


def short_page(found: list[Summary], claims: list[Claim]) -> str:
    """Return the short page."""
    by_name = {one.metadata["name"]: one for one in found}
    main = [by_name.get(name) or by_name[f"{name}-first"] for name in ("dual", "vsepp")]
    tests = [finding.test for claim in claims for finding in claim.findings if finding.test.p_value is not None]
    comparisons, over_images = len(tests), sum("images" in test.basis for test in tests)
    parts = [
        "# Evidence",
        "The claims of the paper, tested on Flickr8k (6,000 training photos, 1,000 test photos) with the packaged "
        "encoders, and noise in the labels on synthetic scenes. Settings are selected on the validation split. All "
        "numbers come from `results/flickr8k`, whose README lists incomplete and repeated runs. "
        f"[Evidence: details]({DETAILS}) has all tables, searches, tests and comparisons, with explanations of the "
        f"verdicts. {_hours()}",
        "## Claims",
        _claims_table(claims),
        f"Verdicts are computed from {comparisons} comparisons, {over_images} of them with a hierarchical bootstrap "
        "over seeds and images, and the others, for which no values per image were stored, with a t-test over seeds. "
        "P-values of the bootstrap are at least those of the t-test. They are adjusted for the number of comparisons "
        "(Holm); the significance level is 0.05.",
        "## Models",
        "RSUM and tau-c with the judgements of experts, on the test split. The losses of a row have the same features.",
        model_table.table(),
        "![RSUM and agreement with experts of each loss on each model](images/evidence-trade.svg)",
        f"Losses with an RSUM more than {WIDEST} below the best one are drawn at the left edge.",
        _searched_text(),
        "## Losses",
        "Validation RSUM, by which the settings were selected, test RSUM, tau-a with the labels of the training, and "
        "tau-c with the judgements of experts on the 300 photos that were not used to select models.",
        _losses_table([*main, by_name["both-search"]], ["frozen encoders", "VSE++", "recommended features"]),
        "On frozen encoders (`dual`) every loss has eight trials of six epochs, with the same learning rates, dropouts "
        "and batch sizes, and five seeds of fifteen epochs. On the features and labels of the recommended recipe "
        "(`both-search`) every loss has four trials of six epochs over the same learning rates and dropouts, and two "
        "points of its own settings; three seeds of twelve epochs, and a width of 512. Its labels are those of two "
        "encoders, so its tau is not comparable with the others. The losses with continuous labels from X-CLR on are "
        "not in the paper ([Which loss](which-loss.md) names their authors); T-SN is Triplet-SN.",
        "![Validation RSUM over epochs](images/evidence-convergence.svg)",
        "Validation RSUM after each epoch, mean over seeds (Figure 4 of the paper). VSE++ and SAF have the settings "
        "that their searches selected, so their losses differ in learning rate and dropout as well, and Triplet-HN "
        "begins with epochs with all negatives.",
        "![Kendall's tau over alpha](images/evidence-alpha.svg)",
        "## Recommended recipes",
        "Selected among all tested configurations: single models by validation RSUM, or by the agreement with experts "
        "on the 200 test photos of `judged_choice.txt`; for both, single models and mean scores of several by this "
        f"agreement among those with a validation RSUM of at least {LEAST_RSUM:.0f}. RSUM and tau, with the labels of "
        "the training, are those of the test split, the agreement with experts is that on the other 300 rated photos.",
        _recipes_table(found),
        _recipes_text(by_name),
        f"[Evidence: gallery]({GALLERY}) shows results of single queries, as Figures 6 and 7 of the paper.",
    ]
    limits = [
        "SAF, SGR and SGRAF have two or three seeds. When runs with the same settings and seeds were repeated on a "
        "GPU, the RSUM of single seeds changed by up to 9 and means by up to 6, more than the differences between the "
        "best losses there.",
        "On SGR Triplet-HN collapsed with both seeds when hard negatives began; its metrics are those of the second "
        "epoch, before them.",
        "`words` and `record` have one seed, and the best of many such rows is in part a lucky one. Two of the five "
        "mean scores of `record` were not computed; one of them is the mean of all nine models. `pixels BCLS` was "
        "added after the test RSUM of `pixels Triplet-SN` was known.",
        "The labels of two encoders had been compared with the ratings of all 500 photos before any model was trained "
        "with them.",
        "In `tuned` BCLS had eight trials (both kinds of log-sum-exp) and the other losses four, and the other "
        "settings were selected in a pilot study that was done almost only with BCLS.",
    ]
    old = [f"`{name}`" for name in model_table.shown() if name.endswith(("-first", "-grid"))]
    if old:
        tables, come = ("tables", "come") if len(old) > 1 else ("table", "comes")
        limits.append(
            f"The {tables} {', '.join(old)} {come} from earlier searches, in which losses did not all have the same "
            "trials, and K-SW-HS collapsed. The searches that replace them have not been evaluated on the test split "
            "yet."
        )
    parts += ["## Limits", "\n".join(f"- {text}" for text in limits)]
    return "\n\n".join(parts) + "\n"


def searched_vsepp() -> dict[str, dict[str, float]]:
    """Validation metrics of the configurations that the search of ``vsepp.yaml`` chose, best RSUM first.

    Returns:
        For each loss the means of ``rsum`` and ``tau`` over seeds, and the standard deviation of RSUM, ``deviation``.
    """
    lines = [json.loads(line) for line in (KEPT / "vsepp-trials.jsonl").read_text(encoding="utf-8").splitlines()]
    runs: dict[str, list[dict[str, float]]] = {}
    for line in lines:
        if line["phase"] == "run":
            runs.setdefault(line["row"], []).append(line["validation"])
    found = {}
    for row, own in runs.items():
        rsum = [one["rsum"] for one in own]
        found[row] = {"rsum": fmean(rsum), "tau": fmean(one["tau"] for one in own), "deviation": stdev(rsum)}
    return dict(sorted(found.items(), key=lambda item: -item[1]["rsum"]))


def _searched_text() -> str:
    """Compare losses on VSE++ after an equal search, on the validation split."""
    found = searched_vsepp()
    best, others = list(found.items())[:5], list(found.values())[5:]
    listed = [f"{one['rsum']:.1f} and {one['tau']:.3f} for {row}" for row, one in best]
    deviations = [one["deviation"] for _, one in best]
    return (
        f"On VSE++ a search with eight trials for each of {len(found)} losses (`vsepp.yaml`, three seeds of the chosen "
        "settings) has been evaluated on the validation split only. There the mean RSUM and tau are "
        f"{', '.join(listed)}; the other losses have an RSUM of at most {others[0]['rsum']:.1f}. The standard "
        f"deviations of RSUM over seeds are {min(deviations):.1f} to {max(deviations):.1f} for these five losses, so "
        "their order is uncertain. The lead of BCLS in RSUM in the table above, which comes from an unequal search, is "
        "not confirmed by the equal one. All losses have the highest learning rate of this search, so a higher one may "
        "be better."
    )


def _recipes_text(by_name: dict[str, Summary]) -> str:
    """Describe the recipe for both goals and the models with the highest RSUM."""
    rsum = {
        (name, row.name): f"{row.test['rsum'].mean:.1f}"
        for name in ("both", "words", "record")
        for row in by_name[name].rows
    }
    people = {row.name: f"{row.test['report_expert_tau_c'].mean:.3f}" for row in by_name["both"].rows}
    words, record = (
        f"{rsum[name, 'SGRAF BCLS']} with BCLS and {rsum[name, 'SGRAF Triplet-SN']} with Triplet-SN"
        for name in ("words", "record")
    )
    ensembles = [[row for row in by_name[name].rows if row.name.startswith("SGRAF")] for name in ("words", "record")]
    better = " and ".join(dict.fromkeys(model_table.strongest(rows).name.removeprefix("SGRAF ") for rows in ensembles))
    return (
        f"The recipe for both goals is `configs/flickr8k/recommended.yaml`. It was selected in [`both`]({DETAILS}#both)"
        f", where losses had equal settings instead of equal searches: RSUM {rsum['both', 'dense Kendall']} and "
        f"{people['dense Kendall']} with experts for dense Kendall, {rsum['both', 'BCLS']} and {people['BCLS']} for "
        f"BCLS, {rsum['both', 'Triplet-SN']} and {people['Triplet-SN']} for Triplet-SN. `wide` has in addition a width "
        "of 1024, a learning rate of 3e-3, and dropout 0.6, which no other loss was tried with. The last columns of "
        "the table above compare each loss at its own best setting on the same features and labels. The mean score of "
        f"three such models has an RSUM of {rsum['both', 'three models']}, and {people['three models']} with experts. "
        "The other recipes are rows of sweeps in `configs/flickr8k/sweeps`; the details list the settings that the "
        "searches chose.\n\n"
        f"The models with the highest RSUM are in [`words`]({DETAILS}#words) and [`record`]({DETAILS}#record), one "
        f"seed each: SGRAF, the mean score of SAF and SGR on 36 mirrored crops, has an RSUM of {words} if its words "
        f"come from a fine-tuned MiniLM, and of {record} with a fine-tuned all-mpnet-base-v2 (the validation RSUM "
        f"selects {better}); `cross-attention` is the mean score of these four models with the latter. `pixels` is a "
        f"dual model that also trains its image networks ({rsum['record', 'pixels Triplet-SN']} with Triplet-SN). In "
        "`words` both losses have equal settings and searches. In `record` SAF, SGR and pixels were trained for 8 "
        "epochs with BCLS, and for 4, 4 and 6 epochs with Triplet-SN."
    )


def _hours() -> str:
    """Say how long the stored runs trained; a run that belongs to several sweeps counts once."""
    files = [*KEPT.glob(f"*/{RESULTS}"), *KEPT.glob("*.jsonl")]
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    runs = {(line["key"], line["started"]): line for line in lines}
    gpu, cpu = (
        sum(one.get("seconds", 0.0) for one in runs.values() if bool(one["gpus"]) == on_gpu) / 3600
        for on_gpu in (True, False)
    )
    return (
        f"The stored runs trained for {gpu:.0f} hours on a GPU, which most of them shared with others, and {cpu:.0f} "
        "hours on CPU cores, added up; runs that were replaced or not stored are not included."
    )


def _claims_table(claims: list[Claim]) -> str:
    rows = []
    for claim in claims:
        counts = Counter(finding.verdict for finding in claim.findings)
        held: dict[str, list[str]] = {}  # places by comparison, without the metric
        for finding in claim.findings if claim.verdict == PARTLY else ():
            if finding.verdict == HELD:
                what = finding.what.rpartition(": ")[2].replace(" minus ", " above ")
                held.setdefault(what, []).append(finding.where.split(", ")[1])
        texts = [f"{what} ({', '.join(places)})" for what, places in held.items()]
        numbers = [str(counts[one]) for one in (HELD, INCONCLUSIVE, NOT)]
        rows.append([claim.claim, f"**{claim.verdict}**", *numbers, "; ".join(texts)])
    headings = ["claim", "verdict", "held", "inconclusive", "contradicted", "what is held, if not all"]
    return markdown_table(headings, rows, [True, True, False, False, False, True])


def _losses_table(tables: Sequence[Summary], titles: Sequence[str]) -> str:
    """One line for each configuration, with columns for each table."""
    names = list(dict.fromkeys(row.name for one in tables for row in one.rows if row.test))
    headings, columns = ["loss"], []
    for one, title in zip(tables, titles, strict=True):
        best = {key: max(row.test[key].mean for row in one.rows if row.test) for key, _, _ in COLUMNS}
        rows = {row.name: row for row in one.rows if row.test}
        headings += [f"{title}: validation", *(heading for _, heading, _ in COLUMNS)]
        columns.append((rows, best))
    lines = []
    for name in names:
        cells = [name]
        for rows, best in columns:
            row = rows.get(name)
            cells.append(f"{row.validation['rsum'].mean:.1f}" if row else "")
            for key, _, digits in COLUMNS:
                text = f"{row.test[key].mean:.{digits}f}" if row else ""
                cells.append(f"**{text}**" if row and row.test[key].mean == best[key] else text)
        lines.append(cells)
    return markdown_table(headings, lines)


def _recipes_table(found: list[Summary]) -> str:
    rows = [row for one in found for row in one.rows if "choice_expert_tau_c" in row.test]
    single = [row for row in rows if not row.ensemble]
    recipes = {
        "best RSUM": max(single, key=_rsum),
        "best agreement with people": max(single, key=_people),
        "both": max((row for row in rows if _rsum(row) >= LEAST_RSUM), key=_people),
        "best RSUM of several models": max((row for row in rows if row.ensemble), key=_rsum),
    }
    lines = []
    for goal, row in recipes.items():
        cells = (f"{row.test[key].mean:.{digits}f}" for key, _, digits in COLUMNS)
        seeds = str(row.test["rsum"].count)
        lines.append([goal, f"`{row.sweep}`: {row.name}", _loss(row), seeds, f"{_rsum(row):.1f}", *cells])
    headings = ["goal", "table and configuration", "loss", "seeds", "validation RSUM"]
    headings += [heading for _, heading, _ in COLUMNS]
    return markdown_table(headings, lines, [True, True, True, *[False] * 5])


def _loss(row: SummaryRow) -> str:
    """The loss of a configuration with its settings; nothing for a mean score of several, whose losses may differ."""
    if row.ensemble:
        return ""
    parts = [value if isinstance(value, dict) else {key: value} for key, value in row.loss.items() if key != "name"]
    return ", ".join([f"`{row.loss['name']}`", *(f"{key} {one}" for part in parts for key, one in part.items())])


def _rsum(row: SummaryRow) -> float:
    return row.validation["rsum"].mean


def _people(row: SummaryRow) -> float:
    return row.test["choice_expert_tau_c"].mean


def draw_plots(found: list[Summary], folder: Path) -> None:
    """Draw the three plots of the short page."""
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # no date in the files: equal results give equal files
    by_name = {one.metadata["name"]: one for one in found}
    with figure_file(folder / "evidence-trade.svg", (11.0, 6.0)) as figure:
        panels = figure.subplots(2, 4, sharey=True).flatten()
        for axes, (name, summary) in zip(panels, model_table.shown().items(), strict=False):
            _draw_losses(axes, model_table.tested(summary))
            axes.set_title(textwrap.fill(model_table.MODELS[name], 36), fontsize="x-small")
        for axes in panels[len(model_table.shown()) :]:
            axes.remove()
        figure.supxlabel("RSUM, test split")
        figure.supylabel("tau-c with experts")
        figure.legend(*_all_labels(figure), loc="outside upper center", ncols=4)
    vsepp = "vsepp" if "vsepp" in by_name else "vsepp-first"
    panels = {"convergence": "Frozen encoders, equal settings", vsepp: "VSE++", "saf": "SAF"}
    with figure_file(folder / "evidence-convergence.svg", (10.0, 3.6)) as figure:
        for axes, (name, title) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
            axes.set(xlabel="epoch", title=title, xticks=range(0, 16, 5))
            histories = {row.name: row.history for row in by_name[name].rows}
            for loss in ("Triplet-HN", "Triplet-SN", "BCLS"):
                epochs = [one["epoch"] for one in histories[loss]]
                axes.plot(epochs, [one["rsum"] for one in histories[loss]], "o-", label=loss)
        figure.axes[0].set_ylabel("RSUM")
        figure.axes[0].legend()
    curves: dict[str, list[SummaryRow]] = {"Frozen encoders": by_name["alpha"].rows}
    for row in by_name["alpha-models"].rows if "alpha-models" in by_name else ():
        curves.setdefault(row.row, []).append(row)
    with figure_file(folder / "evidence-alpha.svg", (2.0 + 4.0 * len(curves), 4.0)) as figure:
        for axes, (title, rows) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
            axes.set(xlabel="alpha", title=f"{title}, validation split")
            taus = [row.validation["tau"].mean for row in rows]
            axes.plot([row.point["loss.alpha"] for row in rows], taus, "o-", label="BCLS")
            for color, row in zip(COLORS[1:], by_name["lines"].rows if axes is figure.axes[0] else (), strict=False):
                axes.axhline(row.validation["tau"].mean, linestyle="--", color=color, label=row.name)
            spread = by_name["alpha"].metadata["spread"]
            axes.axvline(spread, linestyle=":", color="gray", label="spread of the captions")
            axes.margins(y=0.3)
        figure.axes[0].set_ylabel("tau-a")
        figure.axes[0].legend(loc="lower center", ncols=2)


def _draw_losses(axes: Any, rows: list[SummaryRow]) -> None:
    """Draw a point for each configuration of a model."""
    best = max(row.test["rsum"].mean for row in rows)
    least = best - WIDEST
    for (group, belongs), color, marker in zip(GROUPS.items(), COLORS, "sDvo", strict=False):
        points = [
            (max(least, row.test["rsum"].mean), row.test["judged_expert_tau_c"].mean)
            for row in rows
            if belongs(row.loss["name"])
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=color, label=group, clip_on=False)
    axes.set_xlim(least, best + WIDEST / 20)


def _all_labels(figure: Any) -> tuple[list[Any], list[str]]:
    """Return one legend entry for each group, from any panel."""
    found = {}
    for axes in figure.axes:
        found |= {text: handle for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    names = [name for name in GROUPS if name in found]
    return [found[name] for name in names], names


def main(sweeps: list[str]) -> None:
    """Copy sweeps and write the pages."""
    for sweep in sweeps:
        keep(Path(sweep), KEPT)
    found = summaries(KEPT)
    if not found:
        sys.exit(f"{KEPT} contains no sweep: name folders that `bcls sweep` wrote")
    remarks = json.loads(REMARKS.read_text(encoding="utf-8"))
    claims = check_claims(found)
    explanations = Terms([(one.claim, remarks[one.claim]) for one in claims if one.claim in remarks])
    sections = build(found, read_paper(PAPER))
    # Below the table of verdicts in the section of the claims.
    sections[-1].blocks[2:2] = [Text("Explanations of verdicts:"), explanations]
    page = as_markdown(sections)
    write_whole(PAGE.with_name(DETAILS), page.replace("# Experiments\n", "# Evidence: details\n", 1))
    write_whole(PAGE, short_page(found, claims))
    draw_plots(found, PLOTS)


if __name__ == "__main__":
    main(sys.argv[1:])
