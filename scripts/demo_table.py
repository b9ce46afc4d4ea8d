"""Writes the results of the demo into docs/quickstart.md: ``python -m scripts.demo_table [results.json]``.

If a ``results.json`` of the demo is given, its main content is first copied to ``results/demo.json``, with the commit
and the command. The table is always written from that file.
"""

import json
import subprocess
import sys
from pathlib import Path

from bcls._core.files import write_whole
from bcls.experiments.demo_report import LOSSES, METRICS
from bcls.reports.blocks import markdown_table
from scripts.readme_part import write_part

ROOT = Path(__file__).parents[1]
KEPT, PAGE = ROOT / "results" / "demo.json", ROOT / "docs" / "quickstart.md"
START, END = "<!-- demo table: made by scripts/demo_table.py from results/demo.json -->", "<!-- end of demo table -->"
SHOWN = ("i2t_r1", "i2t_r10", "t2i_r1", "t2i_r10", "rsum", "tau_pseudo", "tau_true")


def keep(results: Path) -> None:
    """Copy the main content of the results of a demo."""
    made = json.loads(results.read_text(encoding="utf-8"))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    kept = {
        "command": "make demo",
        "commit": commit.stdout.strip(),
        "settings": {key: value for key, value in made["settings"].items() if key != "out"},
        "seconds": round(made["seconds"], 1),
        "summary": made["summary"],
        "runs": [{key: one[key] for key in ("loss", "seed", "test")} for one in made["runs"]],
    }
    write_whole(KEPT, json.dumps(kept, indent=1) + "\n")


def table() -> str:
    """Return the table in Markdown."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    shown = [one for one in METRICS if one[0] in SHOWN]
    best = {key: max(row[key]["mean"] for row in kept["summary"].values()) for key, _, _ in shown}
    rows = []
    for loss, row in kept["summary"].items():
        cells = []
        for key, _, digits in shown:
            cell = f"{row[key]['mean']:.{digits}f} ± {row[key]['deviation']:.{digits}f}"
            cells.append(f"**{cell}**" if row[key]["mean"] == best[key] else cell)
        rows.append([LOSSES[loss], *cells])
    seeds, test = kept["settings"]["seeds"], kept["settings"]["sizes"][2]
    note = (
        f"Mean ± standard deviation over {seeds} seeds on {test} test images with 5 captions each; `{kept['command']}` "
        f"at commit `{kept['commit'][:10]}`, {kept['seconds']:.0f} s on 2 cores."
    )
    return "\n".join([markdown_table(["loss", *(heading for _, heading, _ in shown)], rows), "", note])


def main() -> None:
    """Copy new results if given, and write the table into the quick start."""
    if len(sys.argv) > 1:
        keep(Path(sys.argv[1]))
    write_part(PAGE, START, END, table())


if __name__ == "__main__":
    main()
