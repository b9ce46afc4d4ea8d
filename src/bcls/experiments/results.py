"""Results of sweeps: the files of a sweep folder, and mean and standard deviation over seeds for each configuration.

``runs/KEY/result.json`` is the result of one run, ``results.jsonl`` has all of them, and ``sweep.json`` the metadata.
"""

import json
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import isnan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcls._core.config import check_shape
from bcls._core.errors import fail
from bcls._core.extras import require
from bcls._core.files import replace_folder, write_whole
from bcls._core.locks import lock_folder
from bcls.data.dataset import Dataset
from bcls.evaluation.arrays import read_npz
from bcls.evaluation.evaluator import rsum_by_image
from bcls.evaluation.recall import QueryRanks
from bcls.evaluation.statistics import hierarchical_test
from bcls.experiments.plan import RUN, TRIAL, Choices, PlannedRun, Runs, plan_trials, search_space, trials
from bcls.experiments.sweep_file import Sweep, SweepSettings
from bcls.reports.blocks import Cell
from bcls.training.metrics_log import read_object
from bcls.training.run_folder import BEST, CHECKPOINTS

RUNS, RESULT, RESULTS, SWEEP, RANKS = "runs", "result.json", "results.jsonl", "sweep.json", "ranks"

# What is read from `sweep.json`, from the result of a run, and from a line of `results.jsonl` in addition.
_SEARCH: dict[Any, Any] = {"measure": str, "method": str, "spaces": {str: {str: list}}, "chosen": {str: dict}}
_SEARCH |= {"sizes": {str: int}, "tried": {str: int}, "keys?": {str: list}}
_METADATA: dict[Any, Any] = {"name": str, "about": str, "file": str, "dataset": str, "captions": int, "rows": [str]}
_METADATA |= {"seeds": [int], "columns?": str | None, "claims?": bool, "spread?": float, "search?": _SEARCH}
_RESULT: dict[Any, Any] = {"validation": {"rsum": float, str: float}, "test?": {str: float}, "trial?": {str: float}}
_RESULT |= {"history?": [{"epoch": int, str: float}], "seconds?": float}
_LINE: dict[Any, Any] = {"row": str, "name": str, "phase": str, "seed": int, "point": {str: object}, "noise": float}
_LINE |= {"ensemble": [str], "key": str, "dataset": str, "paper?": {str: str}, "revision?": str | None}
_LINE |= {"settings": {"model": {"name": str}, "loss": {"name": str, "alpha?": float}}}
# What a line has in addition to the result of its run.
_COLUMNS = ("name", "phase", "seed", "point", "noise", "paper")
_RUN_SWEEP = "remove it and run the sweep again: finished runs are kept"
_REMOVE = "remove it: the run is then done again"


def read_results(folder: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the results of a finished or unfinished sweep.

    Args:
        folder: With ``sweep.json`` and ``results.jsonl``; the runs themselves are not needed.

    Returns:
        The metadata of the sweep, and a mapping for each finished run.

    Raises:
        ValueError: If the folder holds no sweep, or one of its files is damaged.
    """
    folder = Path(folder)
    for name in (SWEEP, RESULTS):
        if not (folder / name).is_file():
            fail(str(folder), f"the folder of a sweep, with {name}", "none", "run `bcls sweep FILE --out DIR` first")
    return read_metadata(folder), _read_lines(folder / RESULTS)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    # Not splitlines(), which also splits at characters that are allowed inside of JSON strings.
    content = path.read_bytes().removesuffix(b"\n")
    lines = []
    for number, line in enumerate(content.split(b"\n") if content else [], 1):
        where = f"{path}, line {number}"
        lines.append(_check_result(where, read_object(where, line, _LINE, _RUN_SWEEP)))
    return lines


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read the metadata of a sweep, ``sweep.json``.

    Raises:
        ValueError: If the file is damaged; the message names it.
    """
    path = folder / SWEEP
    return read_object(str(path), path.read_bytes(), _METADATA, _RUN_SWEEP)


def run_folder(out: Path, run: PlannedRun) -> Path:
    """The folder of a run."""
    return out / RUNS / run.key


def read_result(out: Path, run: PlannedRun) -> dict[str, Any] | None:
    """Read the result of a run; ``None`` if it is not finished.

    Raises:
        ValueError: If the file is damaged; the message names it.
    """
    path = run_folder(out, run) / RESULT
    if not path.is_file():
        return None
    return _check_result(str(path), read_object(str(path), path.read_bytes(), {}, _REMOVE))


def failed_member(out: Path, run: PlannedRun) -> PlannedRun | None:
    """The first member of an ensemble that failed."""
    return next((one for one in run.members if "failed" in (read_result(out, one) or {})), None)


def lacks_weights(out: Path, run: PlannedRun) -> bool:
    """Whether a finished run lacks the weights that an ensemble needs: its result may come from another machine."""
    result = read_result(out, run)
    if result is None or "failed" in result:
        return False
    return "again" in result or not (run_folder(out, run) / CHECKPOINTS / BEST).is_dir()  # or has unfinished ones


def needs_work(out: Path, run: PlannedRun, sweep: Sweep, settings: SweepSettings) -> bool:
    """Whether a run is unfinished, has only the metrics of a trial, or lacks metrics of a final sweep."""
    result = read_result(out, run)
    if result is None:
        return True
    if run.phase == TRIAL or "failed" in result:
        return bool(run.members) and failed_member(out, run) is None  # the member was trained again
    return "brief" in result or lacks_test(result, sweep, settings)


def lacks_test(result: Mapping[str, Any], sweep: Sweep, settings: SweepSettings) -> bool:
    """Whether a result lacks metrics of the test split that a final sweep computes; they may be asked for later."""
    if not settings.final:
        return False
    judged = settings.judgements is not None
    asked = {"fold_": sweep.folds > 1, "eccv_": sweep.eccv, "judged_": judged}
    asked["choice_"] = judged and sweep.judged_choice is not None
    keys = result.get("test", {})
    return not keys or any(wanted and not any(key.startswith(one) for key in keys) for one, wanted in asked.items())


def write_result(out: Path, run: PlannedRun, result: dict[str, Any]) -> None:
    """Write the result of a run, which marks it as finished."""
    write_whole(run_folder(out, run) / RESULT, json.dumps(result, indent=1) + "\n")


def write_results(out: Path, runs: Runs) -> None:
    """Write ``results.jsonl`` from the finished runs of a plan, trials included."""
    lines = []
    with lock_folder(out, name=".results.lock", wait=True):
        for run in runs:
            result = read_result(out, run)
            if result is not None:
                columns = {key: getattr(run, key) for key in _COLUMNS}
                about = {"ensemble": [member.configuration for member in run.members], "key": run.key}
                line = {"row": run.configuration, **columns, **about, **result, "settings": run.settings}
                lines.append(json.dumps(line) + "\n")
        write_whole(out / RESULTS, "".join(lines))


def restore_results(out: Path, copy: Path | None = None) -> Path:
    """Write the results of runs from ``results.jsonl`` if there is no folder ``runs``, as in a copy without weights.

    Args:
        out: Folder of the sweep.
        copy: Write them and ``sweep.json`` here, to leave ``out`` unchanged.

    Returns:
        The folder with the results of the runs.
    """

    def write(folder: Path) -> None:
        for line in _read_lines(out / RESULTS):
            result = {key: line[key] for key in line if key not in {*_COLUMNS, "row", "ensemble", "key", "settings"}}
            if not re.fullmatch(r"\w+", line["key"]):  # a path would be written outside of the folder
                fail(f"{out / RESULTS}, key", "letters and digits", repr(line["key"]), "copy the file again")
            (folder / line["key"]).mkdir(exist_ok=True)  # a chosen trial can be a run as well
            write_whole(folder / line["key"] / RESULT, json.dumps(result, indent=1) + "\n")

    if (out / RUNS).exists() or not (out / RESULTS).is_file():
        return out
    target = copy or out
    with lock_folder(target, name=".results.lock", wait=True):
        if not (target / RUNS).exists():
            replace_folder(target / RUNS, write)  # a part of them would pass for all of them
        if copy is not None and (out / SWEEP).is_file():
            shutil.copyfile(out / SWEEP, copy / SWEEP)
    return target


def write_metadata(out: Path, sweep: Sweep, file: str | Path, dataset: Dataset, chosen: Choices) -> None:
    """Write ``sweep.json``.

    Raises:
        ValueError: If the folder holds a sweep over other data.
    """
    kept = ("name", "about", "paper", "columns", "test_split", "claims", "grid", "seeds")
    metadata: dict[str, Any] = {
        **{key: getattr(sweep, key) for key in kept},
        "dataset": dataset.name,
        "captions": len(dataset.captions),
        "rows": [one.name for one in sweep.configurations],
        "file": Path(file).name,
    }
    if sweep.search is not None:
        searched = [one for one in sweep.configurations if not one.ensemble]
        spaces = {one.name: search_space(sweep, one) for one in searched}
        metadata["search"] = {
            **asdict(sweep.search),
            "spaces": spaces,
            "sizes": {name: math.prod(len(values) for values in space.values()) for name, space in spaces.items()},
            "tried": {one.name: len(trials(sweep, one)) for one in searched},
            "keys": _trial_keys(sweep),
            "chosen": chosen,
        }
    path = out / SWEEP
    before = read_metadata(out) if path.is_file() else metadata
    for key in ("dataset", "captions"):
        if before[key] != metadata[key]:
            expected = f"the data of the sweep in {out}, {key} {before[key]}"
            fail("--data", expected, metadata[key], "use another --out")
    write_whole(path, json.dumps(metadata, indent=1) + "\n")


def add_metadata(out: Path, **values: Any) -> None:
    """Add values to ``sweep.json``."""
    write_whole(out / SWEEP, json.dumps({**read_metadata(out), **values}, indent=1) + "\n")


def previous_choices(out: Path, sweep: Sweep) -> Choices:
    """The earlier choices of the search in a folder, for configurations whose trials have not changed.

    A choice is final: the chosen run is evaluated afterwards, possibly after training it again on another machine,
    and its metrics may change slightly. The tested settings must not change with them.
    """
    if sweep.search is None or not (out / SWEEP).is_file():
        return {}
    before = read_metadata(out).get("search", {})
    if before.get("measure") != sweep.search.measure:
        return {}
    known, chosen = before.get("keys", {}), before["chosen"]
    return {
        name: chosen[name] for name, keys in _trial_keys(sweep).items() if name in chosen and known.get(name) == keys
    }


def _check_result(where: str, result: dict[str, Any]) -> dict[str, Any]:
    """Check that a result has metrics, or the reason of a failure."""
    if "failed" not in result:
        check_shape(where, result, _RESULT, _REMOVE)
    return result


def _trial_keys(sweep: Sweep) -> dict[str, list[str]]:
    """The keys of the trials of each configuration."""
    keys: dict[str, list[str]] = {}
    for trial in plan_trials(sweep):
        keys.setdefault(trial.configuration, []).append(trial.key)
    return keys


#: Key, heading and number of digits of a metric in a table.
MetricColumn = tuple[str, str, int]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a metric over seeds.

    Attributes:
        deviation: 0 for one seed.
        count: Number of seeds.
    """

    mean: float
    deviation: float
    count: int

    @property
    def error(self) -> float | None:
        """Standard error of the mean; ``None`` for one seed."""
        return self.deviation / sqrt(self.count) if self.count > 1 else None


def spread(values: Sequence[float]) -> Spread:
    """Compute mean and standard deviation.

    Example:
        >>> spread([1.0, 3.0])
        Spread(mean=2.0, deviation=1.4142135623730951, count=2)
    """
    mean = fmean(values)
    if isnan(mean):  # undefined for one of the runs, such as tau of constant scores
        return Spread(mean, mean, len(values))
    return Spread(mean, stdev(values) if len(values) > 1 else 0.0, len(values))


@dataclass(frozen=True)
class Difference:
    """A difference with its 95 % interval and p-value; ``basis`` names what was resampled or averaged."""

    difference: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    basis: str = "one seed"


def difference(a: Spread, b: Spread) -> Difference:
    """Compare two means over seeds by Welch's t-test, with the 95 % interval of the difference.

    Example:
        >>> test = difference(Spread(3.0, 1.0, 4), Spread(1.0, 1.0, 4))
        >>> test.difference, round(test.low, 2), round(test.high, 2), round(test.p_value, 3)
        (2.0, 0.27, 3.73, 0.03)
        >>> difference(Spread(3.0, 0.0, 1), Spread(1.0, 0.0, 4)).p_value is None
        True
    """
    t = require("scipy.stats", "reports", "comparing means over seeds").t
    gap = a.mean - b.mean
    if a.error is None or b.error is None:
        return Difference(gap)
    error, parts = sqrt(a.error**2 + b.error**2), a.error**4 / (a.count - 1) + b.error**4 / (b.count - 1)
    if not parts:  # the same values with every seed
        return Difference(gap, gap, gap, 1.0 if gap == 0 else 0.0, "seeds")
    freedom = error**4 / parts
    margin = float(t.ppf(0.975, freedom)) * error
    return Difference(gap, gap - margin, gap + margin, 2 * float(t.sf(abs(gap) / error, freedom)), "seeds")


@dataclass(frozen=True)
class SummaryRow:
    """A configuration at one point of the grid, over all its seeds.

    Attributes:
        folder: Folder of the sweep.
        row: Name of the configuration in the sweep file.
        name: The same with the point of the grid and, for SAM, the choice of its negatives, as tables show it.
        model: Name of the model; of an ensemble, that of its first member, as the loss.
        test: Empty until the sweep is final.
        histories: Metrics of each epoch, for each seed.
        keys: Key of the run of each seed.
        failed: Number of seeds that diverged.
    """

    sweep: str
    folder: str
    row: str
    name: str
    dataset: str
    model: str
    loss: dict[str, Any]
    point: dict[str, Any]
    noise: float
    paper: dict[str, str]
    validation: dict[str, Spread]
    test: dict[str, Spread]
    histories: list[list[dict[str, float]]]
    keys: dict[int, str]
    ensemble: list[str]
    failed: int

    @property
    def history(self) -> list[dict[str, float]]:
        """Means over seeds of the metrics of each epoch that all seeds have reached."""
        return [
            {key: fmean(one[key] for one in epochs) for key in epochs[0] if all(key in one for one in epochs)}
            for epochs in zip(*self.histories, strict=False)
        ]

    @property
    def metrics(self) -> dict[str, Spread]:
        """Metrics on the test split if there are any, else on the validation split."""
        return self.test or self.validation

    def on(self, split: str) -> dict[str, Spread]:
        """Metrics on ``"test"`` or ``"validation"``."""
        return self.test if split == "test" else self.validation


@dataclass(frozen=True)
class Summary:
    """Summary of a sweep.

    Attributes:
        folder: Folder of the sweep.
        metadata: Content of ``sweep.json``.
        rows: The configurations in the order of the sweep file.
        trials: Number of runs of a search.
        tested_trials: Number of those that were tested after an earlier choice and are no configuration now.
        commits: Revisions of the code that trained the runs.
        seconds: Training time of all runs.
    """

    folder: Path
    metadata: dict[str, Any]
    rows: list[SummaryRow]
    trials: int = 0
    tested_trials: int = 0
    commits: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def split(self) -> str:
        """Split that the tables show: ``"test"`` if every configuration was tested, else ``"validation"``."""
        finished = [row for row in self.rows if row.validation]  # the others diverged with every seed
        return "test" if finished and all(row.test for row in finished) else "validation"


def summarize(folder: str | Path) -> Summary:
    """Read the results of a sweep and average them over seeds.

    Args:
        folder: Folder that ``bcls sweep`` wrote.

    Raises:
        ValueError: The folder contains no sweep, or its files are damaged.
    """
    folder = Path(folder)
    metadata, lines = read_results(folder)
    runs = [line for line in lines if line["phase"] == RUN]
    if len(runs) < len(lines) and not metadata.get("search"):
        remedy = "run the sweep again: finished runs are kept"
        fail(str(folder / SWEEP), "`search`, since there are trials", "none", remedy)
    names, order = dict.fromkeys(line["name"] for line in runs), metadata["rows"]
    settings = {line["row"]: line["settings"] for line in runs}
    rows = [_row(folder, metadata, name, [one for one in runs if one["name"] == name], settings) for name in names]
    rows.sort(key=lambda row: order.index(row.row) if row.row in order else len(order))
    chosen = {run["key"] for run in runs}
    return Summary(
        folder,
        metadata,
        rows,
        trials=len(lines) - len(runs),
        tested_trials=sum("test" in line for line in lines if line["key"] not in chosen),
        commits=sorted({line["revision"] for line in lines if line.get("revision")}),
        seconds=sum({line["key"]: line.get("seconds", 0.0) for line in lines}.values()),
    )


def metric_cells(columns: Sequence[MetricColumn], rows: Sequence[Mapping[str, Spread]]) -> list[list[Cell]]:
    """Format metrics as rows of cells: mean and deviation, the best of several means in bold, empty if missing.

    Example:
        >>> [row[0].text for row in metric_cells([("rsum", "RSUM", 1)], [{"rsum": spread([1.0, 3.0])}, {}])]
        ['2.0 ± 1.4', '']
    """
    formatted: list[list[Cell]] = [[] for _ in rows]
    for key, _, digits in columns:
        means = [row[key].mean for row in rows if key in row and not isnan(row[key].mean)]
        best = f"{max(means):.{digits}f}" if len(means) > 1 else None
        for cells, value in zip(formatted, (row.get(key) for row in rows), strict=True):
            mean = "" if value is None else f"{value.mean:.{digits}f}"
            deviation = f" ± {value.deviation:.{digits}f}" if value is not None and value.count > 1 else ""
            cells.append(Cell(mean + deviation, bold=mean == best))
    return formatted


def compare_rows(a: SummaryRow, b: SummaryRow, split: str, metric: str = "rsum") -> dict[str, float] | None:
    """Test whether two configurations differ in a metric on the same images.

    Resamples seeds and images, each image with its captions; see :func:`bcls.evaluation.statistics.hierarchical_test`.
    The p-value is at least that of Welch's t-test over seeds: resamples of two or three seeds contain no values outside
    of those seen, so the bootstrap alone underestimates how much other seeds may differ.

    Args:
        a: The first configuration.
        b: The second configuration.
        split: ``"test"`` or ``"validation"``.
        metric: ``"rsum"``, or another one whose values by image were saved, such as ``"report_expert_tau_c"``.

    Returns:
        ``difference`` of a minus b, with ``difference_low``, ``difference_high``, ``p_value`` and ``seeds``, the
        smaller number of seeds of the two; ``None`` if one of them has no saved values.

    Raises:
        ValueError: The files of ranks are damaged or belong to different images.
    """
    tables: list[list[NDArray[np.float64]]] = []
    for row in (a, b):
        files = [Path(row.folder) / RANKS / f"{key}-{split}.npz" for key in row.keys.values()]
        found = [_contributions(file, metric) for file in files if file.is_file()]
        tables.append([values for values in found if values is not None])
    if not all(tables):
        return None
    sizes = {len(values) for table in tables for values in table}
    if len(sizes) > 1:
        got = f"{' and '.join(map(str, sorted(sizes)))} images"
        fail(str(Path(a.folder) / RANKS), "ranks of the same images in each file", got, "copy the ranks again")
    first, second = (np.array(table) for table in tables)
    test = hierarchical_test(first, second)
    over_seeds = difference(*(spread(table.mean(axis=1).tolist()) for table in (first, second)))
    if over_seeds.p_value is not None:
        test["p_value"] = max(test["p_value"], over_seeds.p_value)
    return {**test, "seeds": float(min(len(first), len(second)))}


def _contributions(file: Path, metric: str) -> NDArray[np.float64] | None:
    """Read values by image whose mean is the metric; RSUM is split among the query images."""
    if metric != "rsum":
        with suppress(ValueError):  # not saved
            return np.asarray(read_npz(file, (metric,))[0], np.float64)
        return None
    i2t, t2i, owner = read_npz(file, ("i2t", "t2i", "owner"))
    flat = all(array.ndim == 1 and array.dtype.kind in "iu" and array.size for array in (i2t, t2i, owner))
    inside = flat and len(t2i) == len(owner) and 0 <= int(owner.min()) <= int(owner.max()) < len(i2t)
    if not (inside and (i2t > 0).any()):
        got = ", ".join(f"{array.dtype} of shape {array.shape}" for array in (i2t, t2i, owner))
        fail(str(file), "ranks of images, ranks of captions and the image of each caption", got, "copy the file again")
    return rsum_by_image(QueryRanks(i2t, t2i), owner)


def _row(
    folder: Path, metadata: Mapping[str, Any], name: str, lines: Sequence[Mapping[str, Any]], by_row: Mapping[str, Any]
) -> SummaryRow:
    first, good = lines[0], [line for line in lines if "failed" not in line]
    settings = by_row.get(first["ensemble"][0], first["settings"]) if first["ensemble"] else first["settings"]
    return SummaryRow(
        sweep=metadata["name"],
        folder=str(folder),
        name=name if first["ensemble"] else _with_sampling(name, settings["loss"]),
        model=settings["model"]["name"],
        loss=settings["loss"],
        paper=first.get("paper") or {},
        validation=_spreads(line["validation"] for line in good),
        # A mean over the tested seeds alone would not be comparable with the validation mean over all seeds.
        test=_spreads(line["test"] for line in good) if good and all("test" in line for line in good) else {},
        histories=[line["history"] for line in good if "history" in line],
        keys={line["seed"]: line["key"] for line in good},
        failed=len(lines) - len(good),
        **{key: first[key] for key in ("row", "dataset", "point", "noise", "ensemble")},
    )


def _with_sampling(name: str, loss: Mapping[str, Any]) -> str:
    """Add SAM's choice of negatives to a name: the same name stood for another one in earlier versions.

    Example:
        >>> _with_sampling("SAM", {"name": "sam", "sampling": "least-similar"})
        'SAM (least-similar)'
    """
    return f"{name} ({loss.get('sampling', 'soft')})" if loss["name"] == "sam" else name


def _spreads(found: Iterable[Mapping[str, float]]) -> dict[str, Spread]:
    every = list(found)
    shared = [key for key in every[0] if all(key in one for one in every)] if every else []
    return {key: spread([one[key] for one in every]) for key in shared}
