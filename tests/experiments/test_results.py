"""Files of a sweep folder: results, metadata, and errors that name a damaged file."""

import json
import sys

import pytest

from bcls._core.extras import MissingExtraError
from bcls.data.dataset import open_dataset
from bcls.experiments.plan import plan_runs
from bcls.experiments.results import (
    Spread,
    difference,
    previous_choices,
    read_result,
    read_results,
    run_folder,
    write_metadata,
    write_result,
)
from bcls.experiments.sweep_file import read_sweep
from tests.experiments.factories import data, write
from tests.experiments.sweep_factory import line, sweep


@pytest.mark.parametrize("content", ['{"validation": {"rsum": 1', "[]", "{}", '{"validation": 1}', ""])
def test_a_damaged_result_is_named(tmp_path, content):
    (run,) = plan_runs(read_sweep(write(tmp_path / "a.yaml")))
    assert read_result(tmp_path, run) is None
    run_folder(tmp_path, run).mkdir(parents=True)
    write_result(tmp_path, run, {"failed": "NaN"})
    assert read_result(tmp_path, run) == {"failed": "NaN"}
    path = run_folder(tmp_path, run) / "result.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="expected") as raised:
        read_result(tmp_path, run)
    assert str(raised.value).startswith(f"`{path}")


@pytest.mark.parametrize("bad", ["{}", "[1]", '{"row"', "", "null"])
def test_a_damaged_line_is_named_with_its_number(tmp_path, bad):
    folder = sweep(tmp_path / "a", [line("bcls", 1, 1.0), line("bcls", 2, 1.0)])
    first, second = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "results.jsonl").write_text(f"{first}\n{bad}\n{second}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"results\.jsonl, line 2`: expected"):
        read_results(folder)


def test_no_line_yet(tmp_path):
    assert read_results(sweep(tmp_path / "a", []))[1] == []


@pytest.mark.parametrize("change", [{"rows": None}, {"name": 3}, {"captions": "many"}, {"search": {}}])
def test_incomplete_metadata_is_named(tmp_path, change):
    folder = sweep(tmp_path / "a", [line("bcls", 1, 1.0)], **change)
    with pytest.raises(ValueError, match=r"sweep\.json.*`: expected"):
        read_results(folder)


@pytest.mark.parametrize("content", ["[]", "{}", '{"dataset"'])
def test_damaged_metadata_raises_when_a_sweep_is_resumed(tmp_path, content):
    dataset = open_dataset(data(tmp_path / "data"))
    planned = read_sweep(write(tmp_path / "a.yaml", search={"budget": 1}))
    (tmp_path / "sweep.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"sweep\.json`: expected"):
        previous_choices(tmp_path, planned)
    with pytest.raises(ValueError, match=r"sweep\.json`: expected"):
        write_metadata(tmp_path, planned, "a.yaml", dataset, {})


def test_unicode_line_separators_inside_a_line(tmp_path):
    folder = sweep(tmp_path / "a", [line("bcls", 1, 1.0)])
    content = json.dumps(line("b\u2028cls", 1, 1.0), ensure_ascii=False)
    (folder / "results.jsonl").write_text(content + "\n", encoding="utf-8")
    assert read_results(folder)[1][0]["row"] == "b\u2028cls"


SEARCH = {"budget": 2, "space": {"lr": [1e-3, 1e-2]}}
CHOSEN = {"A": {"lr": 1e-3}, "B": {"lr": 1e-2}}


def sweep_of(place, rows, **search):
    return read_sweep(write(place / "a.yaml", runs=rows, search={**SEARCH, **search}))


def described(place):
    """A folder in which settings were chosen for two rows."""
    sweep = sweep_of(place, {"A": {}, "B": {"batch": 16}})
    dataset = open_dataset(data(place / "data"))
    out = place / "out"
    out.mkdir()
    write_metadata(out, sweep, "a.yaml", dataset, CHOSEN)
    return out, dataset


def test_a_choice_is_kept_while_the_trials_of_its_configuration_are_unchanged(tmp_path):
    out, _ = described(tmp_path)
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}})) == CHOSEN
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}}, budget=9)) == CHOSEN
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 4}})) == {"A": CHOSEN["A"]}
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}}, seeds=[2])) == {}
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}}, measure="tau")) == {}


def test_an_old_choice_does_not_return_after_a_change(tmp_path):
    out, dataset = described(tmp_path)
    other = sweep_of(tmp_path, {"A": {}, "B": {"batch": 4}})
    write_metadata(out, other, "a.yaml", dataset, previous_choices(out, other))  # and no more than that
    assert previous_choices(out, other) == {"A": CHOSEN["A"]}


def test_choices_without_known_trials_are_made_again(tmp_path):
    out, _ = described(tmp_path)
    about = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    del about["search"]["keys"]
    (out / "sweep.json").write_text(json.dumps(about), encoding="utf-8")
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}})) == {}


def test_a_difference_without_scipy_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(MissingExtraError, match=r'means over seeds needs scipy\.stats: pip install "bcls\[reports\]"$'):
        difference(Spread(3.0, 1.0, 4), Spread(1.0, 1.0, 4))
