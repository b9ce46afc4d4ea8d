"""Which choices of an earlier search stand."""

import json

from bcls.experiments.results import chosen_before, describe
from bcls.experiments.sweep_file import SweepSettings, read_sweep
from tests.experiments.made import data, write

SEARCH = {"budget": 2, "space": {"lr": [1e-3, 1e-2]}}
CHOSEN = {"A": {"lr": 1e-3}, "B": {"lr": 1e-2}}


def sweep_of(place, rows, **search):
    return read_sweep(write(place / "a.yaml", runs=rows, search={**SEARCH, **search}))


def described(place):
    """A folder in which settings were chosen for two rows."""
    sweep = sweep_of(place, {"A": {}, "B": {"batch": 16}})
    data(place / "data")
    out = place / "out"
    out.mkdir()
    settings = SweepSettings(data=str(place / "data"), out=str(out))
    describe(out, sweep, "a.yaml", settings, CHOSEN)
    return out, settings


def test_a_choice_stands_while_the_trials_of_its_row_are_the_same(tmp_path):
    out, _ = described(tmp_path)
    assert chosen_before(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}})) == CHOSEN
    assert chosen_before(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}}, budget=9)) == CHOSEN
    assert chosen_before(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 4}})) == {"A": CHOSEN["A"]}
    assert chosen_before(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}}, seeds=[2])) == {}
    assert chosen_before(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}}, measure="tau")) == {}


def test_a_sweep_that_is_stopped_after_a_change_does_not_bring_the_old_choice_back(tmp_path):
    out, settings = described(tmp_path)
    other = sweep_of(tmp_path, {"A": {}, "B": {"batch": 4}})
    describe(out, other, "a.yaml", settings, chosen_before(out, other))  # and no more than that
    assert chosen_before(out, other) == {"A": CHOSEN["A"]}


def test_choices_of_which_no_trials_are_known_are_made_again(tmp_path):
    out, _ = described(tmp_path)
    about = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    del about["search"]["keys"]
    (out / "sweep.json").write_text(json.dumps(about), encoding="utf-8")
    assert chosen_before(out, sweep_of(tmp_path, {"A": {}, "B": {"batch": 16}})) == {}
