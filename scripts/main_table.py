"""Writes the main table of the evidence into README.md: ``python -m scripts.main_table``.

The figures are those of ``results/flickr8k/dual``, which ``scripts/evidence_page.py`` keeps of the sweep.
"""

from pathlib import Path

from bcls.experiments.results import read_results
from bcls.experiments.summary import spread
from scripts.readme_part import write_part

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "flickr8k"
START, END = (
    "<!-- main table: made by scripts/main_table.py from results/flickr8k/dual -->",
    "<!-- end of main table -->",
)
FIGURES = (
    ("rsum", "RSUM", 1),
    ("tau", "τ labels", 3),
    ("ndcg", "nDCG", 3),
    ("judged_expert_tau_c", "τ-c experts", 3),
    ("judged_crowd_tau_b", "τ-b crowd", 3),
)


def table() -> str:
    """The table in Markdown, best RSUM last."""
    about, lines = read_results(KEPT / "dual")
    rows: dict[str, list[dict[str, float]]] = {}
    for line in lines:
        if line["phase"] == "run" and "test" in line:
            rows.setdefault(line["row"], []).append(line["test"])
    spreads = {row: {key: spread([one[key] for one in tests]) for key, _, _ in FIGURES} for row, tests in rows.items()}
    best = {key: max(one[key].mean for one in spreads.values()) for key, _, _ in FIGURES}
    made = ["| loss | " + " | ".join(name for _, name, _ in FIGURES) + " |", "|---|" + "---:|" * len(FIGURES)]
    for row in sorted(spreads, key=lambda row: spreads[row]["rsum"].mean):
        cells = []
        for key, _, digits in FIGURES:
            mean, deviation = spreads[row][key].mean, spreads[row][key].deviation
            cell = f"{mean:.{digits}f} ± {deviation:.{digits}f}"
            cells.append(f"**{cell}**" if mean == best[key] else cell)
        made.append(f"| {row} | " + " | ".join(cells) + " |")
    seeds = sorted({len(tests) for tests in rows.values()})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    tried = next(iter(about["search"]["tried"].values()))
    note = (
        f"Mean ± standard deviation over {count} seeds; each loss at the best of {tried} settings by validation RSUM."
    )
    return "\n".join([*made, "", note])


def main() -> None:
    """Write the table into the README."""
    write_part(START, END, table())


if __name__ == "__main__":
    main()
