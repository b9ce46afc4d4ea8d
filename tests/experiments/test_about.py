"""Which choices of an earlier search stand."""

import json

from bcls.data.dataset import open_dataset
from bcls.experiments.results import previous_choices, write_metadata
from bcls.experiments.sweep_file import read_sweep
from tests.experiments.made import data, write

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


def test_a_choice_stands_while_the_trials_of_its_row_are_the_same(tmp_path):
    out, _ = described(tmp_path)
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}})) == CHOSEN
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}}, budget=9)) == CHOSEN
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 4}})) == {"A": CHOSEN["A"]}
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}}, seeds=[2])) == {}
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}}, measure="tau")) == {}


def test_a_sweep_that_is_stopped_after_a_change_does_not_bring_the_old_choice_back(tmp_path):
    out, dataset = described(tmp_path)
    other = sweep_of(tmp_path, {"A": {}, "B": {"batch": 4}})
    write_metadata(out, other, "a.yaml", dataset, previous_choices(out, other))  # and no more than that
    assert previous_choices(out, other) == {"A": CHOSEN["A"]}


def test_choices_of_which_no_trials_are_known_are_made_again(tmp_path):
    out, _ = described(tmp_path)
    about = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    del about["search"]["keys"]
    (out / "sweep.json").write_text(json.dumps(about), encoding="utf-8")
    assert previous_choices(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}})) == {}
