"""The demo's table on the terminal, and what to do next."""

from collections.abc import Sequence
from pathlib import Path

from bcls.demo.results import FIGURES, LOSSES, Run, summary
from bcls.demo.run import RUNS, SCENES


def print_table(runs: Sequence[Run], out: Path) -> None:
    """Print mean and deviation of every test figure, the best of each in bold, and the next steps."""
    from rich.console import Console
    from rich.table import Table

    rows = summary(runs)
    seeds = len({run.seed for run in runs})
    table = Table(title="Test split" + (f", mean ± deviation over {seeds} seeds" if seeds > 1 else ", one seed"))
    table.add_column("loss")
    for _, heading, _ in FIGURES:
        table.add_column(heading, justify="right")
    best = {key: max(row[key].mean for row in rows.values()) for key, _, _ in FIGURES}
    for loss, row in rows.items():
        cells = []
        for key, _, digits in FIGURES:
            cell = f"{row[key].mean:.{digits}f}" + (f" ± {row[key].deviation:.{digits}f}" if seeds > 1 else "")
            cells.append(f"[bold]{cell}[/bold]" if row[key].mean == best[key] else cell)
        table.add_row(LOSSES[loss], *cells)
    # Off a terminal rich would fold the table to 80 columns.
    console = Console(width=None if Console().is_terminal else 160)
    console.print(table)
    console.print(
        "R@K, RSUM: is the right one among the first K? τ pseudo: agreement with MiniLM's labels, which BCLS learned "
        "from. τ true: agreement with the scenes themselves, which no loss has seen.\n"
    )
    # Plain: names of folders may look like markup.
    console.print(f"Report with curves and a gallery: {out / 'report.html'}", markup=False)
    console.print(f"All figures: {out / 'results.json'}", markup=False)
    next_step = f"bcls evaluate {out / RUNS / 'bcls-seed0'} --data {out / SCENES} · bcls demo --help"
    console.print(f"Next: {next_step}", markup=False)
