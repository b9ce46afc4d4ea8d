import json

import pytest
import torch

from bcls.experiments import bench as subjects
from bcls.experiments.bench import LIMIT, SUBJECTS, run_subject
from bcls.experiments.bench_report import run_all

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _shortly(monkeypatch):
    monkeypatch.setattr(subjects, "_QUICK_SECONDS", 0.0)
    monkeypatch.setattr(subjects, "_FEWEST", 1)


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_subject_measures_every_path_at_every_value(name):
    result = run_subject(name, CPU, quick=True)
    axis, values = result["axis"], SUBJECTS[name].values["quick cpu"]
    assert sorted({row[axis] for row in result["rows"]}) == sorted(values)
    assert all(row["ms"] > 0 for row in result["rows"])
    assert all((row["MB"] > 0) == (row["path"] != LIMIT) for row in result["rows"])
    assert {row["path"] for row in result["rows"] if row[axis] == values[0]} >= {LIMIT}
    assert result["machine"].startswith("CPU")
    json.dumps(result)


def test_slow_paths_stop_early():
    few, _ = SUBJECTS["losses"].paths(1024, CPU)
    many, kept = SUBJECTS["losses"].paths(1025, CPU)
    assert few.keys() - many.keys() == {"dense Kendall, plain", "K-SW-HS, loop over windows"}
    assert kept == 4 * 1025**2


def test_there_is_no_such_subject():
    with pytest.raises(ValueError, match="did you mean 'losses'"):
        run_subject("loses", CPU)


def test_what_is_measured_is_kept_when_a_later_one_is_stopped(tmp_path, monkeypatch):
    def stop(size, device):
        raise KeyboardInterrupt

    monkeypatch.setitem(SUBJECTS, "windows", subjects.Subject("t", "M", {"quick cpu": (1,)}, stop))
    with pytest.raises(KeyboardInterrupt):
        run_all(["width", "windows"], tmp_path / "new", "cpu", quick=True)
    kept = {path.name for path in (tmp_path / "new").iterdir()}
    assert {"bench-width.json", "bench.md"} <= kept <= {"bench-width.json", "bench-width.svg", "bench.md"}
