"""Writes the table of models of the evidence into README.md: ``python -m scripts.model_table``.

One row for each model: RSUM and agreement with experts for BCLS and for losses with binary labels, from
``results/flickr8k``.
"""

from pathlib import Path

from bcls.experiments.summary import Summary, SummaryRow, summarize
from bcls.reports.blocks import markdown_table
from scripts.readme_part import write_part

ROOT = Path(__file__).parents[1]
KEPT, PAGE = ROOT / "results" / "flickr8k", ROOT / "README.md"
START, END = "<!-- models: made by scripts/model_table.py from results/flickr8k -->", "<!-- end of models -->"
MODELS = {
    "dual-first": "frozen EfficientNet-Lite0 and 2, frozen MiniLM",
    "vsepp-first": "VSE++ on frozen EfficientNet-Lite0, 1 and 2, four crops",
    "tuned": "frozen EfficientNet-Lite0, 1 and 2, four crops, fine-tuned MiniLM",
    "saf-grid": "SAF on 36 regions of EfficientNet-Lite2, 8 epochs",
    "sgr-grid": "SGR on 36 regions of EfficientNet-Lite2, 8 epochs",
}
_MEAN = " (mean)"
#: If a loss has configurations with both kinds of log-sum-exp, the one with the better validation RSUM is shown.
LOSSES = {name: (name, name + _MEAN) for name in ("Triplet-HN", "InfoNCE", "Triplet-SN", "BCLS")}


def table() -> str:
    """Return the table in Markdown."""
    made = []
    seeds: set[int] = set()
    settings: set[int] = set()
    for name, description in MODELS.items():
        summary = summarize(KEPT / name)
        found = [_row_of(summary, names) for names in LOSSES.values()]
        made.append([description, *_cells(found)])
        rows = [row for row in found if row is not None]
        seeds |= {row.test["rsum"].count for row in rows}
        settings |= {summary.metadata["search"]["tried"][row.name] for row in rows}
    tried = f"{min(settings)} to {max(settings)}"
    note = (
        f"RSUM and τ-c with experts, means over {min(seeds)} to {max(seeds)} seeds. Each loss has the best of {tried} "
        'settings and, where both were tried, the better `lse`, by validation RSUM; † marks `lse="mean"`.'
    )
    return "\n".join([markdown_table(["model", *LOSSES], made), "", note])


def _row_of(summary: Summary, names: tuple[str, ...]) -> SummaryRow | None:
    rows = [row for row in summary.rows if row.name in names]
    return max(rows, key=lambda row: row.validation["rsum"].mean, default=None)


def _cells(rows: list[SummaryRow | None]) -> list[str]:
    best = {
        metric: max(row.test[metric].mean for row in rows if row is not None)
        for metric in ("rsum", "judged_expert_tau_c")
    }

    def one(row: SummaryRow, metric: str, digits: int) -> str:
        text = f"{row.test[metric].mean:.{digits}f}"
        return f"**{text}**" if row.test[metric].mean == best[metric] else text

    def both(row: SummaryRow) -> str:
        mark = " †" if row.name.endswith(_MEAN) else ""
        return f"{one(row, 'rsum', 1)}, {one(row, 'judged_expert_tau_c', 3)}{mark}"

    return ["" if row is None else both(row) for row in rows]


def main() -> None:
    """Write the table into the README."""
    write_part(PAGE, START, END, table())


if __name__ == "__main__":
    main()
