"""Writes the table of models of the evidence into README.md: ``python -m scripts.model_table``.

One row for each model with its features, from ``results/flickr8k``: Triplet-HN, the strongest loss without a Kendall
term, and BCLS. Losses are compared within one row only, where the features are the same.
"""

from collections import Counter
from functools import cache
from pathlib import Path

from bcls._core.errors import fail
from bcls.evaluation.statistics import holm
from bcls.experiments.claims import is_rival
from bcls.experiments.results import Summary, SummaryRow, compare_rows, summarize
from bcls.reports.blocks import markdown_table
from scripts.readme_part import write_part

ROOT = Path(__file__).parents[1]
KEPT, PAGE = ROOT / "results" / "flickr8k", ROOT / "README.md"
START, END = "<!-- models: made by scripts/model_table.py from results/flickr8k -->", "<!-- end of models -->"
_DUAL, _VSEPP = "frozen EfficientNet-Lite0 and 2, frozen MiniLM", "VSE++ on EfficientNet-Lite0, 1 and 2, four crops"
_GRID = "on a grid of EfficientNet-Lite2, half width, 8 epochs"
_CROPS = "on 36 mirrored crops, EfficientNet-Lite0, 1 and 2"
#: Sweeps with their model and features. An earlier sweep, `-first` or `-grid`, is shown until there is a newer one.
MODELS = {
    "dual": _DUAL,
    "dual-first": _DUAL,
    "both-search": "frozen EfficientNet-Lite0, 1 and 2, four crops, frozen MiniLM, labels of two encoders",
    "vsepp": _VSEPP,
    "vsepp-first": _VSEPP,
    "tuned": "EfficientNet-Lite0, 1 and 2, four crops, fine-tuned MiniLM",
    "saf": f"SAF {_CROPS}",
    "saf-grid": f"SAF {_GRID}",
    "sgr": f"SGR {_CROPS}",
    "sgr-grid": f"SGR {_GRID}",
    "sgraf": f"SGRAF {_CROPS}",
}
HEADINGS = ["model and features", "seeds", "Triplet-HN", "strongest other loss", "BCLS", "BCLS minus strongest, RSUM"]


@cache
def shown() -> dict[str, Summary]:
    """Return the summaries of the table, by the name of their sweep."""
    found = {name: summarize(KEPT / name) for name in MODELS if (KEPT / name).is_dir()}
    done = {name: summary for name, summary in found.items() if summary.split == "test"}
    return {name: summary for name, summary in done.items() if name.rpartition("-")[0] not in done}


def tested(summary: Summary) -> list[SummaryRow]:
    """Return the tested configurations; of a sweep of SGRAF the ensembles only."""
    return [row for row in summary.rows if row.test and bool(row.ensemble) == ("sgraf" in summary.metadata["name"])]


def is_equal(summary: Summary) -> bool:
    """Whether the search tried the same number of settings for each loss."""
    tried, counts = summary.metadata["search"]["tried"], Counter[str]()
    for row in (one for one in summary.rows if not one.ensemble):
        counts[row.loss["name"]] += tried[row.row]
    return len(set(counts.values())) == 1


def has_collapsed(row: SummaryRow) -> bool:
    """Whether the RSUM at the end of training is a fraction of that of the best epoch."""
    return row.history[-1]["rsum"] < row.validation["rsum"].mean / 2


def strongest(rows: list[SummaryRow]) -> SummaryRow:
    """Return the configuration with the best validation RSUM."""
    return max(rows, key=lambda row: row.validation["rsum"].mean)


def table() -> str:
    """Return the table in Markdown."""
    made, p_values = [], []
    for name, summary in shown().items():
        rows = tested(summary)
        bcls = strongest([row for row in rows if row.loss["name"] == "bcls"])
        hard = [row for row in rows if row.loss["name"] == "triplet-hn"]
        rivals = [row for row in rows if is_rival(row.loss["name"])]
        rival = strongest(rivals)
        compared = (*((strongest(hard),) if hard else ()), rival, bcls)
        seeds = sorted({row.test["rsum"].count for row in compared})
        test = compare_rows(bcls, rival, "test")
        if test is None:
            fail(str(KEPT / name), f"ranks of {bcls.name} and {rival.name}", "none", "copy them again")
        p_values.append(test["p_value"])
        gap = f"{test['difference']:+.1f} ({test['difference_low']:+.1f} to {test['difference_high']:+.1f}; p {{:.2f}})"
        loss = f"{rival.name.removeprefix('SGRAF ')} (of {len({row.loss['name'] for row in rivals})})"
        cells = [_cell(row, compared) for row in compared]
        count = " to ".join(map(str, seeds))
        model = MODELS[name] + "*" * (not is_equal(summary))
        first = cells[0] + " (collapsed)" * has_collapsed(compared[0]) if hard else "not run"
        made.append([model, count, first, f"{loss}: {cells[-2]}", cells[-1], gap])
    for line, p_value in zip(made, holm(p_values), strict=True):
        line[-1] = line[-1].format(p_value)
    note = (
        "Means over seeds; every loss has the setting with the best validation RSUM of its search. The strongest other "
        "loss has the best validation RSUM of those without a Kendall term, whose number is given. In parentheses: "
        "95 % interval over seeds and images, and the p-value, adjusted for the rows of this table (Holm). Intervals "
        "from two seeds are uncertain. * The search did not try the same number of settings for every loss."
    )
    return "\n".join([markdown_table(HEADINGS, made), "", note])


def _cell(row: SummaryRow, others: tuple[SummaryRow, ...]) -> str:
    """RSUM and agreement with experts, bold where they are the best of the row of the table."""
    texts = []
    for metric, digits in (("rsum", 1), ("judged_expert_tau_c", 3)):
        text = f"{row.test[metric].mean:.{digits}f}"
        best = max(f"{one.test[metric].mean:.{digits}f}" for one in others)
        texts.append(f"**{text}**" if text == best else text)
    return ", ".join(texts)


def main() -> None:
    """Write the table into the README."""
    write_part(PAGE, START, END, table())


if __name__ == "__main__":
    main()
