"""``report.html``: curves, tables and settings of a run in one file that needs no other and no network."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bcls._core.extras import MissingExtraError
from bcls._core.files import write_whole
from bcls.reports.charts import as_element, drawing
from bcls.reports.html import frame
from bcls.training.metrics_log import Curve, curves_of, duration, read_metrics
from bcls.training.run_folder import CONFIG, ENVIRONMENT, REPORT

_COLOURS = ("#2673bd", "#ad5f00", "#8a3ba6", "#12803c")
_STYLE = """
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1.5rem; }
figure { margin: 0; }
svg { width: 100%; height: auto; }
.scroll { overflow-x: auto; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tr.best td { font-weight: 700; }
pre { overflow-x: auto; padding: 1rem; border: 1px solid var(--line); }
.quiet { color: var(--quiet); }
"""


def write_report(folder: Path) -> None:
    """Write ``report.html`` from what else lies in a run's folder.

    Args:
        folder: The run's folder. Without matplotlib the page has no curves, and says how to get them.
    """
    lines = read_metrics(folder)
    steps = [line for line in lines if line["kind"] == "step"]
    looks = [line for line in lines if line["kind"] == "validation"]
    settings = (folder / CONFIG).read_text(encoding="utf-8")
    environment = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    write_whole(folder / REPORT, _page(folder.name, steps, looks, settings, environment))


def _page(name: str, steps: list[Any], looks: list[Any], settings: str, environment: Mapping[str, Any]) -> str:
    took = duration(steps[-1]["seconds"]) if steps else "no time"
    last = steps[-1]["step"] if steps else 0
    try:
        curves = enumerate(curves_of(steps, looks))
        plots = "".join(f"<figure>{_svg(number, curve)}</figure>" for number, curve in curves)
    except MissingExtraError as error:
        plots = f'<p class="quiet">No curves: {escape(str(error))}</p>'
    content = f"""<h1>{escape(name)}</h1>
<p class="quiet">{last} steps in {took}.</p>
<h2>Course</h2>
<div class="plots">{plots}</div>
<h2>Validation</h2>
{_table(looks)}
<h2>Settings</h2>
<pre>{escape(settings)}</pre>
<h2>Environment</h2>
<pre>{escape(json.dumps(environment, indent=1))}</pre>"""
    return frame(f"{name}: a training run", content, _STYLE)


def _table(looks: Sequence[Mapping[str, Any]]) -> str:
    if not looks:
        return '<p class="quiet">No validation split.</p>'
    keys = [key for key, value in looks[0].items() if isinstance(value, float)]
    head = "".join(f"<th>{escape(key)}</th>" for key in ("epoch", *keys))
    latest = max((number for number, look in enumerate(looks) if look["best"]), default=-1)
    digits = {key: 4 if "tau" in key or key == "loss" else 2 for key in keys}
    rows = []
    for number, look in enumerate(looks):
        cells = "".join(f"<td>{look[key]:.{digits[key]}f}</td>" for key in keys)
        mark = ' class="best"' if number == latest else ""
        rows.append(f"<tr{mark}><td>{look['epoch']}</td>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _svg(number: int, curve: Curve) -> str:
    with drawing() as figure_class:
        figure = figure_class(figsize=(4.2, 2.8), layout="constrained")
        figure.patch.set_alpha(0.0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0.0)
        for key, colour in zip(curve.keys, _COLOURS, strict=False):
            points = [(line[curve.axis], line[key]) for line in curve.lines if key in line]
            marker = "o" if len(points) == 1 else ""
            axes.plot(*zip(*points, strict=True), color=colour, label=key, marker=marker, linewidth=1.5)
        axes.set_title(curve.title, fontsize=11)
        axes.set_xlabel(curve.axis)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(curve.keys) > 1:
            axes.legend(frameon=False)
        return as_element(figure, curve.title, f"plot{number}")
