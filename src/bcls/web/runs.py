"""The pages of training runs: a table of all runs, and one page per run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from bcls._core.config import read_yaml
from bcls.reports.charts import ChartImage, ChartLine, line_chart
from bcls.training.metrics_log import charts_or_hint, points_of, read_metrics, run_charts
from bcls.training.run_folder import CONFIG, METRICS
from bcls.web.api import SiteOf
from bcls.web.responses import render
from bcls.web.site import Site

routes = APIRouter(include_in_schema=False)
#: Maximum number of runs in the table, and in one chart.
MAX_RUNS, MAX_CURVES = 200, 8
_COLUMNS = ("rsum", "i2t_r1", "t2i_r1", "i2t_tau_a", "t2i_tau_a")
_CHARTS = (("RSUM", "rsum"), ("Tau, image to text", "i2t_tau_a"), ("Tau, text to image", "t2i_tau_a"))


@dataclass(frozen=True)
class TrainingRun:
    """A training run, as far as its folder can be read.

    Attributes:
        name: Its folder below the folder of runs.
        steps: Metrics of the training steps.
        validations: Metrics of the validations.
        config: Text of its configuration.
        model: Name of the model.
        loss: Name of the loss.
        error: What could not be read; empty if everything could.
    """

    name: str
    steps: list[dict[str, Any]]
    validations: list[dict[str, Any]]
    config: str
    model: str
    loss: str
    error: str

    @property
    def best(self) -> dict[str, Any]:
        """The best validation: the last one marked as best, or the last."""
        marked = [one for one in self.validations if one.get("best")]
        return (marked or self.validations or [{}])[-1]


def find_runs(folder: Path) -> dict[str, Path]:
    """Folders with a ``metrics.jsonl`` by name: the folder itself, and folders up to two levels below."""
    found = {}
    for pattern in (METRICS, f"*/{METRICS}", f"*/*/{METRICS}"):
        for file in sorted(folder.glob(pattern)):
            name = file.parent.relative_to(folder).as_posix()
            found[folder.name if name == "." else name] = file.parent
    return dict(list(found.items())[:MAX_RUNS])


def read_run(name: str, folder: Path) -> TrainingRun:
    """Read a run; of a damaged one, what can be read."""
    lines: list[dict[str, Any]] = []
    settings: object = {}
    config, error = "", ""
    try:
        lines = read_metrics(folder)
    except (OSError, ValueError) as reason:
        error = f"{METRICS} cannot be read ({reason})"
    try:
        settings = read_yaml(folder / CONFIG)
        config = (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, ValueError) as reason:
        error = error or f"{CONFIG} cannot be read ({type(reason).__name__})"
    steps = [line for line in lines if line.get("kind") == "step"]
    validations = [line for line in lines if line.get("kind") == "validation"]
    model, loss = (_component(settings, kind) for kind in ("model", "loss"))
    return TrainingRun(name, steps, validations, config, model, loss, error)


@routes.get("/runs")
def runs_page(request: Request, site: SiteOf) -> Response:
    """A table of all runs, and charts of the first ones."""
    runs = [read_run(name, folder) for name, folder in _known_runs(site).items()]

    def draw(title: str, key: str) -> ChartImage | None:
        lines = [ChartLine(run.name, points_of(run.validations, "epoch", key)) for run in runs[:MAX_CURVES]]
        return line_chart(title, "epoch", lines)

    charts = charts_or_hint(lambda: [draw(*one) for one in _CHARTS])
    return render(request, "runs.html", {"runs": runs, "columns": _COLUMNS, "most": MAX_CURVES, **charts})


@routes.get("/runs/{name:path}")
def run_page(request: Request, site: SiteOf, name: str) -> Response:
    """One run: charts, validations and configuration."""
    # The name is looked up among the known runs and never used as a path.
    folder = _known_runs(site).get(name)
    if folder is None:
        raise HTTPException(404, "there is no such run: see /runs for all runs")
    run = read_run(name, folder)
    keys = [key for key, value in (run.validations[0] if run.validations else {}).items() if isinstance(value, float)]
    charts = charts_or_hint(lambda: run_charts(run.steps, run.validations))
    return render(request, "run.html", {"run": run, "keys": keys, **charts})


def _known_runs(site: Site) -> dict[str, Path]:
    if site.runs is None:
        raise HTTPException(404, "there is no folder of runs: start with `bcls serve INDEX --runs DIR`")
    return find_runs(site.runs)


def _component(settings: object, kind: str) -> str:
    found = settings.get(kind) if isinstance(settings, dict) else None
    return str(found.get("name", "–")) if isinstance(found, dict) else "–"
