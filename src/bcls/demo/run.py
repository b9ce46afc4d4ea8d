"""The demo from start to end."""

import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bcls import __version__
from bcls._extras import require
from bcls._files import write_whole
from bcls._progress import Step, progress
from bcls.demo.report import write_report
from bcls.demo.results import LOSSES, Run, summary
from bcls.demo.scenes import DemoData, prepare
from bcls.demo.settings import DemoSettings
from bcls.demo.train import train


def run(settings: DemoSettings) -> list[Run]:
    """Make the data, train every loss from every seed, write ``results.json`` and ``report.html``.

    Both files are written again after each round of losses, so an interrupted demo keeps what it has.

    Args:
        settings: See :class:`DemoSettings`.

    Returns:
        The runs, by seed and then in the order of :data:`LOSSES`.
    """
    started = time.perf_counter()
    # Said before the work, not after four minutes of it.
    require("matplotlib", "plots", "drawing the report's curves")
    require("sentence_transformers", "text", "reading captions with MiniLM")
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    data = prepare(settings)
    runs: list[Run] = []
    total = settings.seeds * len(LOSSES) * settings.epochs
    with progress("training", total) as step:
        for seed in range(settings.seeds):
            for loss, name in LOSSES.items():
                tell = partial(_tell, step, len(runs) * settings.epochs, f"{name}, seed {seed + 1} of {settings.seeds}")
                runs.append(train(loss, seed, data, settings, tell))
            _write(out, runs, data, settings, time.perf_counter() - started)
    return runs


def _tell(step: Step, before: int, note: str, epoch: int) -> None:
    step(before + epoch, note)


def _write(out: Path, runs: list[Run], data: DemoData, settings: DemoSettings, seconds: float) -> None:
    described = {"version": __version__, **asdict(settings), "sizes": settings.sizes}
    figures = {loss: {key: asdict(spread) for key, spread in row.items()} for loss, row in summary(runs).items()}
    results = {
        "settings": described,
        "seconds": seconds,
        "summary": figures,
        "runs": [one.as_json() for one in runs],
    }
    write_whole(out / "results.json", json.dumps(results, indent=1) + "\n")
    write_report(out / "report.html", runs, data.test, described, seconds)
