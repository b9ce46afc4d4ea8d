"""Training runs: which there are, and their curves and tables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from bcls._core.config import read_yaml
from bcls._core.extras import MissingExtraError
from bcls.reports.charts import ChartImage, ChartLine, line_chart
from bcls.training.metrics_log import read_metrics
from bcls.training.page import points_of, run_charts
from bcls.training.run_folder import CONFIG, METRICS
from bcls.web.api import site_of
from bcls.web.problem import ProblemError
from bcls.web.rendering import html

routes = APIRouter(include_in_schema=False)
#: Most runs that are listed, and that share one plot.
MOST, TOGETHER = 200, 8
_FIGURES = ("rsum", "i2t_r1", "t2i_r1", "i2t_tau_a", "t2i_tau_a")


@dataclass(frozen=True)
class Run:
    """A training run, as far as its folder can be read.

    Attributes:
        name: Its folder below the folder of runs.
        steps: Readings of the steps.
        looks: Validations.
        config: Text of its settings.
        model: Name of the model.
        loss: Name of the loss.
        trouble: What could not be read; empty if all could.
    """

    name: str
    steps: list[dict[str, Any]]
    looks: list[dict[str, Any]]
    config: str
    model: str
    loss: str
    trouble: str

    @property
    def best(self) -> dict[str, Any]:
        """The validation that counts: the last one that was the best so far, or the last."""
        marked = [look for look in self.looks if look.get("best")]
        return (marked or self.looks or [{}])[-1]


def find_runs(folder: Path) -> dict[str, Path]:
    """Folders with a ``metrics.jsonl`` by their names: the folder itself, and those up to two levels below."""
    found = {}
    for pattern in (METRICS, f"*/{METRICS}", f"*/*/{METRICS}"):
        for file in sorted(folder.glob(pattern)):
            name = file.parent.relative_to(folder).as_posix()
            found[folder.name if name == "." else name] = file.parent
    return dict(list(found.items())[:MOST])


def read_run(name: str, folder: Path) -> Run:
    """Read a run; one that is damaged is shown with what can be read."""
    lines: list[dict[str, Any]] = []
    settings: object = {}
    config, trouble = "", ""
    try:
        lines = read_metrics(folder)
    except (OSError, ValueError) as error:
        trouble = f"{METRICS} cannot be read ({error})"
    try:
        settings = read_yaml(folder / CONFIG)
        config = (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        trouble = trouble or f"{CONFIG} cannot be read ({type(error).__name__})"
    steps = [line for line in lines if line.get("kind") == "step"]
    looks = [line for line in lines if line.get("kind") == "validation"]
    return Run(name, steps, looks, config, _name(settings, "model"), _name(settings, "loss"), trouble)


@routes.get("/runs")
def runs_page(request: Request) -> Response:
    """All runs: a table, and the curves of the first of them in one plot each."""
    runs = [read_run(name, folder) for name, folder in _known(request).items()]

    def draw() -> list[ChartImage | None]:
        titles = {"RSUM": "rsum", "Tau, image to text": "i2t_tau_a", "Tau, text to image": "t2i_tau_a"}
        return [
            line_chart(
                title, "epoch", [ChartLine(run.name, points_of(run.looks, "epoch", key)) for run in runs[:TOGETHER]]
            )
            for title, key in titles.items()
        ]

    rows = [(run, _figures(run.best)) for run in runs]
    return html(request, "runs.html", {"rows": rows, "figures": _FIGURES, "together": TOGETHER, **_charts(draw)})


@routes.get("/runs/{name:path}")
def run_page(request: Request, name: str) -> Response:
    """One run."""
    folder = _known(request).get(name)
    if folder is None:
        raise ProblemError(404, "there is no such run: see /runs for those there are")
    run = read_run(name, folder)
    charts = _charts(lambda: run_charts(run.steps, run.looks))
    keys = [key for key, value in (run.looks[0] if run.looks else {}).items() if isinstance(value, float)]
    rows = [
        (look.get("epoch", ""), look is run.best, [_written(key, look.get(key)) for key in keys]) for look in run.looks
    ]
    return html(request, "run.html", {"run": run, "keys": keys, "rows": rows, **charts})


def _charts(draw: Callable[[], list[Any]]) -> dict[str, Any]:
    """Draw charts for a template; without matplotlib there is a hint instead."""
    try:
        return {"charts": [chart for chart in draw() if chart is not None], "hint": ""}
    except MissingExtraError as error:
        return {"charts": [], "hint": str(error)}


def _known(request: Request) -> dict[str, Path]:
    """The runs there are; a name in a request is looked up here and never used as a path."""
    site = site_of(request)
    if site.runs is None:
        raise ProblemError(404, "there is no folder of runs: start with `bcls serve INDEX --runs DIR`")
    return find_runs(site.runs)


def _figures(look: Mapping[str, Any]) -> list[str]:
    return [_written(key, look.get(key)) for key in _FIGURES]


def _written(key: str, value: object) -> str:
    """A figure as tables show it.

    Example:
        >>> _written("rsum", 318.64), _written("i2t_tau_a", 0.35712), _written("rsum", None)
        ('318.6', '0.357', '–')
    """
    if not isinstance(value, int | float):
        return "–"
    return f"{value:.3f}" if "tau" in key or "loss" in key else f"{value:.1f}"


def _name(settings: object, what: str) -> str:
    found = settings.get(what) if isinstance(settings, dict) else None
    return str(found.get("name", "–")) if isinstance(found, dict) else "–"
