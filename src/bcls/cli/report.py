"""``bcls report``: tables, charts and claims from sweeps."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bcls._core.errors import fail
from bcls.cli.arguments import parse


@dataclass(frozen=True)
class ReportSettings:
    """Summarize sweeps: means and standard deviations over seeds, paired tests, charts, and the claims of the paper.

    For each claim it states whether it holds. Prints Markdown unless a file is given.

    Attributes:
        folders: Folders of sweeps.
        paper: File with the paper's tables, results/paper.json; they are shown below the results.
        html: Write the report to this HTML file.
        markdown: Write the report to this Markdown file.
        json: Print configurations and claims as JSON.
        gallery: Instead of the report: two configurations of one DIR on the queries where they differ most; with --data
            and --html.
        data: Folder of the dataset, for --gallery.
        queries: Queries per direction in the gallery.
    """

    folders: list[str] = field(default_factory=list)
    paper: str | None = None
    html: str | None = None
    markdown: str | None = None
    json: bool = False
    gallery: list[str] = field(default_factory=list)
    data: str | None = None
    queries: int = 20


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("report", ReportSettings, arguments, positional={"folders": "DIR"})
    folders, markdown = settings.folders, settings.markdown
    if not folders:
        fail("DIR", "folders that `bcls sweep` wrote", "none", "for example `bcls report sweeps/main`")
    from bcls.reports.html import check_page, write_page

    check_page(settings.html, settings.queries)
    if markdown is not None and (Path(markdown).is_dir() or not Path(markdown).parent.is_dir()):
        fail("--markdown", "a file in an existing folder", repr(markdown), "create the folder first")
    if settings.gallery:
        _write_gallery(settings)
        return 0
    if settings.data is not None:
        fail("--data", "--gallery, which needs it", "no --gallery", "add --gallery with two configurations, or omit it")
    from bcls.experiments.claims import check_claims, read_paper
    from bcls.experiments.report import as_html, as_markdown, build
    from bcls.experiments.results import summarize

    summaries = [summarize(folder) for folder in folders]
    sections = build(summaries, None if settings.paper is None else read_paper(settings.paper))
    for path, content in ((settings.html, as_html), (markdown, as_markdown)):
        if path is not None:
            write_page(path, content(sections))
    if settings.json:
        rows = [asdict(row) for summary in summaries for row in summary.rows]
        claims = [{**asdict(claim), "verdict": claim.verdict} for claim in check_claims(summaries)]
        print(json.dumps({"rows": rows, "claims": claims}))
    elif settings.html is None and markdown is None:
        print(as_markdown(sections), end="")
    return 0


def _write_gallery(settings: ReportSettings) -> None:
    """Write the page of ``--gallery``."""
    folders, data, html = settings.folders, settings.data, settings.html
    if len(folders) != 1 or data is None or html is None:
        fail("--gallery", "one DIR, --data and --html", " ".join(folders), "add what is missing")
    for flag in ("paper", "markdown", "json"):
        if getattr(settings, flag):
            fail(f"--{flag}", "no --gallery, which replaces the report", "both", "run the command twice")
    from bcls.cli.compare import CompareSettings, compare_models
    from bcls.data.dataset import open_dataset
    from bcls.experiments.report import gallery_runs
    from bcls.experiments.results import summarize

    summary = summarize(folders[0])
    runs, config = gallery_runs(summary, settings.gallery)
    name = summary.metadata["test_split"] if summary.split == "test" else str(config.val_split)
    dataset = open_dataset(data)
    split = (dataset.without_quarantined() if config.skip_quarantined else dataset).split(name)
    page = CompareSettings(data, html=html, queries=settings.queries, labels=config.label_encoder)
    compare_models(split, {"a": [str(runs[0])], "b": [str(runs[1])]}, settings.gallery, page)
