"""``bcls report DIR...``: tables, curves and verdicts from sweeps."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bcls._core.errors import fail
from bcls.cli.arguments import parse

ABOUT = (
    "Puts the results of sweeps together: means and spreads over seeds, paired tests, curves, and for each claim of "
    "the paper whether it held. Prints Markdown unless a file is named."
)


@dataclass(frozen=True)
class ReportSettings:
    """Settings of ``bcls report DIR...``."""

    folders: list[str] = field(default_factory=list)
    """Folders of sweeps."""
    paper: str | None = None
    """File with the paper's tables, results/paper.json: its rows stand below ours."""
    html: str | None = None
    """Write the report as one HTML file here."""
    markdown: str | None = None
    """Write the report as Markdown here."""
    json: bool = False
    """Print rows and verdicts as JSON."""
    gallery: list[str] = field(default_factory=list)
    """In place of the report: two rows of one DIR, side by side where they differ most; with --data and --html."""
    data: str | None = None
    """Folder of the dataset, for --gallery."""
    queries: int = 20
    """Queries of each direction in the gallery."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    settings = parse("report", ABOUT, ReportSettings, arguments, positional={"folders": "DIR"})
    folders = settings.folders
    if not folders:
        fail("bcls report: DIR", "folders that `bcls sweep` wrote", "none", "for example `bcls report sweeps/main`")
    from bcls.reports.html import check_page, write_page

    check_page(settings.html, settings.queries)
    if settings.markdown is not None and (
        Path(settings.markdown).is_dir() or not Path(settings.markdown).parent.is_dir()
    ):
        fail("--markdown", "a file in a folder that exists", repr(settings.markdown), "make the folder first")
    if settings.gallery:
        return _gallery(settings, folders)
    from bcls.experiments.claims import check_claims, read_paper
    from bcls.experiments.report import as_html, as_markdown, build
    from bcls.experiments.summary import summarise

    summaries = [summarise(folder) for folder in folders]
    sections = build(summaries, None if settings.paper is None else read_paper(settings.paper))
    for path, content in ((settings.html, as_html), (settings.markdown, as_markdown)):
        if path is not None:
            write_page(path, content(sections))
    if settings.json:
        rows = [asdict(row) for summary in summaries for row in summary.rows]
        claims = [{**asdict(claim), "verdict": claim.verdict} for claim in check_claims(summaries)]
        print(json.dumps({"rows": rows, "claims": claims}))
    elif settings.html is None and settings.markdown is None:
        print(as_markdown(sections), end="")
    return 0


def _gallery(settings: ReportSettings, folders: Sequence[str]) -> int:
    if len(folders) != 1 or settings.data is None or settings.html is None:
        fail("--gallery", "one DIR, --data and --html", " ".join(folders), "add what is missing")
    from bcls.experiments.report_gallery import gallery
    from bcls.experiments.summary import summarise
    from bcls.reports.html import write_page

    page = gallery(summarise(folders[0]), settings.gallery, settings.data, count=settings.queries)
    write_page(settings.html, page)
    return 0
