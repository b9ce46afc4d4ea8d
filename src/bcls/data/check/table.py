"""A check's report on the terminal."""

from bcls.data.check.findings import NOTES, PROBLEMS
from bcls.data.check.run import Report


def print_report(report: Report) -> None:
    """Print a line for each kind that was found, with an example, and what went into quarantine."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    counts = report.counts()
    if counts:
        table = Table("", "found", title=f"check of {escape(str(report.folder))}")
        table.add_column("number", justify="right")
        table.add_column("for example", overflow="fold")
        for kind, what in (PROBLEMS | NOTES).items():
            if kind in counts:
                example = next(one for one in report.findings if one.kind == kind)
                level = "[red]problem[/red]" if kind in PROBLEMS else "note"
                table.add_row(level, what, f"{counts[kind]:,}", escape(f"{example.subject}: {example.detail}"))
        console.print(table)
    bad = report.quarantine
    if bad.images or bad.captions:
        console.print(f"{len(bad.images):,} images and {len(bad.captions):,} captions are in quarantine.json")
    console.print("no problems" if report.is_clean else "problems were found; --json lists them all", style="bold")
