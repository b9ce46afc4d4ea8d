import json
import subprocess
import sys

import pytest

from bcls.cli.sweep import main
from tests.experiments.factories import data, write


@pytest.fixture
def place(tmp_path):
    data(tmp_path / "data")
    return tmp_path


def flags(place, *more):
    return [str(place / "a.yaml"), "--data", str(place / "data"), "--out", str(place / "out"), "--device", "cpu", *more]


def test_a_sweep_is_listed_and_run(place, capsys):
    write(place / "a.yaml", runs={"HN": {"loss": {"name": "triplet-hn"}}, "BCLS": {}}, settings={"epochs": 1})
    assert main(flags(place, "--dry-run", "--json")) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["finished"]) for row in listed] == [("HN", False), ("BCLS", False)]
    assert main(flags(place, "--dry-run", "--only", "BCLS", "HN")) == 0
    assert capsys.readouterr().out.count("seed 1") == 2
    assert main(flags(place, "--dry-run", "--only", "BCLS")) == 0
    assert capsys.readouterr().out.count("seed 1") == 1
    assert not (place / "out").exists()
    assert main(flags(place)) == 0
    assert f"2 of 2 runs are finished; results in {place / 'out'}/results.jsonl\n" in capsys.readouterr().out
    assert main(flags(place, "--dry-run")) == 0
    assert capsys.readouterr().out.count("done") == 2
    assert main(flags(place, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["finished"] == 2


def test_no_results_are_named_before_the_first_run_is_finished(place, capsys):
    write(place / "a.yaml", runs={"BCLS": {}}, settings={"epochs": 1000})
    assert main(flags(place, "--minutes", "0.001")) == 0
    printed = capsys.readouterr()
    assert printed.out == "0 of 1 runs are finished\n"
    assert "run the same command to continue" in printed.err


def test_a_diverged_run_gives_exit_code_1(place, capsys):
    write(place / "a.yaml", runs={"wild": {"lr": 1e37, "clip": None}})
    assert main(flags(place)) == 1
    assert "diverged: wild" in capsys.readouterr().err


def test_the_choice_of_a_search_is_printed(place, capsys):
    write(place / "a.yaml", search={"budget": 1, "space": {"lr": [0.01]}}, settings={"epochs": 1})
    assert main(flags(place)) == 0
    assert "chosen for a: lr 0.01" in capsys.readouterr().out


def test_the_file_comes_first(place):
    with pytest.raises(ValueError, match="FILE"):
        main(["--data", "x"])


def test_help_needs_no_torch():
    code = "import sys, bcls.cli.sweep, bcls.cli.report; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
