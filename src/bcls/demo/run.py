"""The demo from start to end."""

import json
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

from bcls import __version__
from bcls._checks import fail
from bcls._extras import require
from bcls._files import write_whole
from bcls.demo.report import write_report
from bcls.demo.results import LOSSES, Run, summary
from bcls.demo.scenes import prepare
from bcls.demo.settings import DemoSettings
from bcls.demo.train import train

#: The figures, and folders of the dataset and of the runs, in the demo's folder.
RESULTS, SCENES, RUNS = "results.json", "scenes", "runs"


def run(settings: DemoSettings) -> list[Run]:
    """Make the data, train every loss from every seed, write ``results.json`` and ``report.html``.

    The dataset lies in ``scenes`` and each run in ``runs/LOSS-seedN``, for ``bcls evaluate`` and the like. Figures and
    report are written again after each round of losses, so an interrupted demo keeps what it has.

    Args:
        settings: See :class:`DemoSettings`.

    Returns:
        The runs, by seed and then in the order of :data:`LOSSES`.

    Raises:
        ValueError: The folder holds something else under the names that the demo writes.
    """
    started = time.perf_counter()
    # Said before the work, not after four minutes of it.
    require("matplotlib", "plots", "drawing the report's curves")
    require("sentence_transformers", "text", "reading captions with MiniLM")
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    _clear(out)
    described = {"version": __version__, **asdict(settings), "sizes": settings.sizes}
    _write(out, [], described, 0.0)
    data = prepare(settings, out / SCENES)
    runs: list[Run] = []
    total = settings.seeds * len(LOSSES)
    for seed in range(settings.seeds):
        for loss, name in LOSSES.items():
            note = f"training {len(runs) + 1} of {total}: {name}, seed {seed + 1} of {settings.seeds}"
            print(note, file=sys.stderr, flush=True)
            runs.append(train(loss, seed, data, settings, out / RUNS / f"{loss}-seed{seed}"))
        seconds = time.perf_counter() - started
        _write(out, runs, described, seconds)
        write_report(out / "report.html", runs, data.test, described, seconds)
    return runs


def _clear(out: Path) -> None:
    """Remove what an earlier demo left in its folder; nothing else that has those names is touched."""
    runs = [path for loss in LOSSES for path in sorted((out / RUNS).glob(f"{loss}-seed*"))]
    there = [path for path in (out / SCENES, *runs) if path.exists()]
    if there and not _is_demo(out / RESULTS):
        remedy = "choose another folder with --out: nothing is overwritten"
        fail("--out", "a new folder, or that of an earlier demo", f"{there[0]} without its {RESULTS}", remedy)
    for path in there:
        shutil.rmtree(path)


def _is_demo(results: Path) -> bool:
    try:
        content = json.loads(results.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"settings", "summary", "runs"} <= content.keys()


def _write(out: Path, runs: list[Run], described: dict[str, object], seconds: float) -> None:
    figures = {loss: {key: asdict(spread) for key, spread in row.items()} for loss, row in summary(runs).items()}
    results = {
        "settings": described,
        "seconds": seconds,
        "summary": figures,
        "runs": [one.as_json() for one in runs],
    }
    write_whole(out / RESULTS, json.dumps(results, indent=1) + "\n")
