from datetime import date

import pytest
import yaml

from bcls.experiments.sweep_file import read_sweep
from tests.experiments.made import BASE, write

DAY = date(2026, 1, 2)  # what YAML makes of 2026-01-02


def test_rows_go_on_top_of_settings_on_top_of_a_preset(tmp_path):
    (tmp_path / "preset.yaml").write_text(yaml.safe_dump(BASE), encoding="utf-8")
    (tmp_path / "other.yaml").write_text("epochs: 7\nloss: {name: sam}\n", encoding="utf-8")
    file = write(
        tmp_path / "a.yaml",
        base="preset.yaml",
        settings={"batch": 16},
        runs={"A": {"lr": "5e-4"}, "B": {"base": "other.yaml"}},
        seeds=2,
    )
    sweep = read_sweep(file)
    a, b = sweep.configurations
    assert (a.settings["batch"], a.settings["lr"], a.settings["epochs"]) == (16, 5e-4, 2)
    assert (b.settings["batch"], b.settings["loss"], b.settings["epochs"]) == (16, {"name": "sam"}, 7)
    assert (sweep.name, sweep.seeds) == ("a", (1, 2))


def test_without_rows_the_file_is_one(tmp_path):
    sweep = read_sweep(write(tmp_path / "alone.yaml", grid={"loss.alpha": [0.1, 0.2]}))
    assert [row.name for row in sweep.configurations] == ["alone"]


def test_a_name_of_the_papers_row_is_meant_for_every_table(tmp_path):
    runs = {"A": {"paper": "SGR"}, "B": {"paper": {"V": "SGR"}}}
    a, b = read_sweep(write(tmp_path / "a.yaml", paper=["III", "V"], runs=runs)).configurations
    assert (a.paper, b.paper) == ({"III": "SGR", "V": "SGR"}, {"V": "SGR"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"grids": {}}, "did you mean 'grid'"),
        ({"grid": {"loss.alpha": 0.1}}, "expected a list of values"),
        ({"grid": {"epoch": [1]}}, "did you mean 'epochs'"),
        ({"grid": {"batch": [1]}}, "`batch`"),
        ({"seeds": [1, 1]}, "a list of different ones"),
        ({"seeds": 0}, "`seeds`"),
        ({"seeds": []}, "a list of different ones"),
        ({"seeds": [[1], {}]}, "`seeds`: expected a whole number"),
        ({"seeds": 10**400}, "at most 10000 seeds"),
        ({"base": "a\0b"}, "`base`: expected the name of a file"),
        ({"settings": {"lr": 10**400}}, "`lr`: expected a finite number"),
        ({"runs": {"A": {"seed": 3}}}, "`setting`"),
        ({"runs": {"A": {"ensemble": ["B", "C"]}}}, "at least one configuration that is trained"),
        ({"runs": {"A": {}, "B": {"ensemble": ["A", "C"]}}}, "`runs.B.ensemble`"),
        ({"runs": {"A": {"ensemble": ["A"]}}}, "two configurations or more"),
        ({"runs": {"A": {"space": {"lr": [1]}}}}, "it with `search`"),
        ({"runs": {"A": {"noise": -1}}}, "`runs.A.noise`"),
        ({"runs": ["A"]}, "`runs`: expected a mapping"),
        ({"search": {}}, "`search.budget`"),
        ({"search": {"budget": 0}}, "`search.budget`"),
        ({"search": {"budget": 1, "method": "clever"}}, "`search.method`"),
        ({"search": {"budgets": 1}}, "did you mean 'budget'"),
        ({"search": {"budget": 1}, "grid": {"lr": [0.1]}}, "either a grid or a search"),
        ({"paper": "X"}, "`paper`"),
        ({"folds": 0}, "`folds`"),
        ({"scenes": 3}, "`scenes`"),
        ({"settings": {"val_split": None}}, "`val_split`"),
        ({"settings": {"log_every": 3}}, "`setting`"),
        ({"settings": {"save_every": 3}}, "`setting`"),
        ({"settings": {"keep_epochs": True}}, "`setting`"),
        ({"settings": {"ema": None}}, "`ema`: expected a number"),
        ({"settings": {"ema": "0.9"}}, "`ema`: expected a number"),
        ({"settings": {"smallest_crop": None}}, "`smallest_crop`: expected a number"),
        ({"settings": {"lr": "0.001"}}, "`lr`: expected a number"),
        ({"settings": {"drops": 5}}, "`drops`: expected a list"),
        ({"settings": {"drops": ["5"]}}, r"`drops\[0\]`: expected a whole number"),
        ({"settings": {"rates": [1]}}, "`rates`: expected a mapping"),
        ({"settings": {"rates": {"heads": "2"}}}, "`rates.heads`: expected a number"),
        ({"settings": {"distinct": "no"}}, "`distinct`: expected true or false"),
        ({"settings": {"features": DAY}}, "`features`: expected a string"),
        ({"settings": {"model.width": DAY}}, "`model.width`: expected a string, a number"),
        ({"grid": {"labels": [DAY]}}, "`labels`: expected a string"),
        ({"search": {"budget": 1, "measure": 5}}, "`search.measure`: expected a string"),
        ({"eccv": "no"}, "`eccv`: expected true or false"),
        ({"test_split": None}, "`test_split`: expected a string"),
        ({"columns": 3}, "`columns`: expected a string"),
        ({"about": ["a"]}, "`about`: expected a string"),
        ({"settings": {"best": "tau", "labels": "none"}}, "`best`"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path, content, message):
    with pytest.raises(ValueError, match=message) as raised:
        read_sweep(write(tmp_path / "wrong.yaml", **content))
    assert "wrong.yaml" in str(raised.value)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", ""])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "wrong.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"wrong\.yaml"):
        read_sweep(path)


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))


@pytest.mark.parametrize("text", [LAUGHS, "runs: &a {A: *a}", "runs: " + "[" * 100_000, "a: b\n" * 100_000, "a: \x1b"])
@pytest.mark.parametrize("base", [False, True])
def test_files_that_would_become_too_much_are_refused(tmp_path, text, base):
    """Also as a preset, whose name is told then."""
    path = tmp_path / "wrong.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"wrong\.yaml`: expected"):
        read_sweep(write(tmp_path / "a.yaml", base="wrong.yaml") if base else path)
