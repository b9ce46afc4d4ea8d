"""Writes the main table of the evidence into README.md: ``python -m scripts.main_table``.

The results are those in ``results/flickr8k/dual``, which ``scripts/evidence_page.py`` copied from the sweep.
"""

from pathlib import Path

from bcls.experiments.results import read_results
from bcls.experiments.summary import spread
from bcls.reports.blocks import markdown_table
from scripts.readme_part import write_part

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "flickr8k"
START, END = (
    "<!-- main table: made by scripts/main_table.py from results/flickr8k/dual -->",
    "<!-- end of main table -->",
)
METRICS = (
    ("rsum", "RSUM", 1),
    ("tau", "τ labels", 3),
    ("ndcg", "nDCG", 3),
    ("judged_expert_tau_c", "τ-c experts", 3),
    ("judged_crowd_tau_b", "τ-b crowd", 3),
)


def table() -> str:
    """Return the table in Markdown, sorted by RSUM."""
    metadata, lines = read_results(KEPT / "dual")
    tests: dict[str, list[dict[str, float]]] = {}
    for line in lines:
        if line["phase"] == "run" and "test" in line:
            tests.setdefault(line["row"], []).append(line["test"])
    spreads = {row: {key: spread([one[key] for one in own]) for key, _, _ in METRICS} for row, own in tests.items()}
    best = {key: max(one[key].mean for one in spreads.values()) for key, _, _ in METRICS}
    rows = []
    for row in sorted(spreads, key=lambda row: spreads[row]["rsum"].mean):
        cells = []
        for key, _, digits in METRICS:
            mean, deviation = spreads[row][key].mean, spreads[row][key].deviation
            cell = f"{mean:.{digits}f} ± {deviation:.{digits}f}"
            cells.append(f"**{cell}**" if mean == best[key] else cell)
        rows.append([row, *cells])
    seeds = sorted({len(own) for own in tests.values()})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    tried = next(iter(metadata["search"]["tried"].values()))
    note = (
        f"Mean ± standard deviation over {count} seeds; each loss at the best of {tried} settings by validation RSUM."
    )
    return "\n".join([markdown_table(["loss", *(name for _, name, _ in METRICS)], rows), "", note])


def main() -> None:
    """Write the table into the README."""
    write_part(START, END, table())


if __name__ == "__main__":
    main()
