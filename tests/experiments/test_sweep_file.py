"""Sweep files: merging, errors, and the files in configs/."""

import json
import re
import subprocess
from datetime import date
from functools import cache
from pathlib import Path

import pytest
import yaml

from bcls.experiments.claims import paper_metrics, read_paper
from bcls.experiments.plan import plan_runs, plan_trials
from bcls.experiments.sweep_file import label, merge, read_sweep
from bcls.losses import BCLSLoss
from bcls.models.config import model_config
from bcls.training.optimization import make_loss
from tests.experiments.factories import BASE, write

DAY = date(2026, 1, 2)  # what YAML makes of 2026-01-02


def test_configurations_are_merged_into_settings_and_a_preset(tmp_path):
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


def test_without_runs_the_file_is_one_configuration(tmp_path):
    sweep = read_sweep(write(tmp_path / "alone.yaml", grid={"loss.alpha": [0.1, 0.2]}))
    assert [row.name for row in sweep.configurations] == ["alone"]


def test_one_paper_row_applies_to_every_table(tmp_path):
    runs = {"A": {"paper": "SGR"}, "B": {"paper": {"V": "SGR"}}}
    a, b = read_sweep(write(tmp_path / "a.yaml", paper=["III", "V"], columns="Flickr30K", runs=runs)).configurations
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
        ({"base": "\ud800"}, "`base`: expected the name of a file"),
        ({"settings": {"lr": 10**400}}, "`lr`: expected a finite number"),
        ({"runs": {"A": {"seed": 3}}}, "`setting`"),
        ({"runs": {"A": {"ensemble": ["B", "C"]}}}, "at least one configuration that is trained"),
        ({"runs": {"A": {}, "B": {"ensemble": ["A", "C"]}}}, "`runs.B.ensemble`"),
        ({"runs": {"A": {"ensemble": ["A"]}}}, "two configurations or more"),
        ({"runs": {"A": {}, "B": {}, "C": {"ensemble": ["A", "B", "A"]}}}, "`runs.C.ensemble`.*all different"),
        ({"runs": {"A": {"space": {"lr": [1]}}}}, "expected a `search` that uses it, got none"),
        ({"runs": {"A": {}, "B": {"lr": "fast"}}}, "runs.B: `lr`: expected a number"),
        ({"grid": {"lr": [0.1, 0.2, 0.1]}}, "`grid.lr`: expected a list of different values"),
        (
            {"search": {"budget": 2, "space": {"lr": [1, 1.0]}}},
            "`search.space.lr`: expected a list of different values",
        ),
        ({"search": {"budget": 2, "measure": "rsmu"}}, "`search.measure`.*did you mean 'rsum'"),
        ({"search": {"budget": 2, "measure": "judged_expert_tau_c"}}, "`search.measure`"),  # of all rated images
        ({"search": {"budget": 2, "measure": "choice_expert_tau_c"}}, "`judged_choice`"),
        ({"search": {"budget": 2, "epochs": 3}}, "`search.epochs`: expected at most its 2 epochs"),
        ({"columns": "Flickr3K"}, "did you mean 'Flickr30K'"),
        ({"paper": "VIII", "runs": {"A": {"paper": "BCLS"}}}, "`columns`: expected one of 'Flickr30K'"),
        ({"runs": {"A": {"noise": -1}}}, "`runs.A.noise`"),
        ({"runs": ["A"]}, "`runs`: expected a mapping"),
        ({"search": {}}, "`search.budget`"),
        ({"search": {"budget": 0}}, "`search.budget`"),
        ({"search": {"budget": 1, "method": "clever"}}, "`search.method`"),
        ({"search": {"budget": 1, "epochs": 0}}, "`search.epochs`"),
        ({"search": {"budget": 1, "epochs": 1, "space": {"warm_negatives": [1]}}}, "fewer than the 1 epochs"),
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
def test_errors_name_the_file_and_the_key(tmp_path, content, message):
    with pytest.raises(ValueError, match=message) as raised:
        read_sweep(write(tmp_path / "wrong.yaml", **content))
    assert "wrong.yaml" in str(raised.value)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", ""])
def test_other_files_raise(tmp_path, text):
    path = tmp_path / "wrong.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"wrong\.yaml"):
        read_sweep(path)


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))


@pytest.mark.parametrize("text", [LAUGHS, "runs: &a {A: *a}", "runs: " + "[" * 100_000, "a: b\n" * 100_000, "a: \x1b"])
@pytest.mark.parametrize("base", [False, True])
def test_oversized_yaml_raises(tmp_path, text, base):
    """Also as a preset, whose name is told then."""
    path = tmp_path / "wrong.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"wrong\.yaml`: expected"):
        read_sweep(write(tmp_path / "a.yaml", base="wrong.yaml") if base else path)


def test_a_mapping_with_a_name_replaces_the_old_one():
    base = {"loss": {"name": "bcls", "alpha": 0.1}, "model": {"name": "dual", "width": 8}}
    assert merge(base, {"loss": {"name": "sam"}})["loss"] == {"name": "sam"}
    assert merge(base, {"model": {"width": 16}})["model"] == {"name": "dual", "width": 16}
    assert base["loss"] == {"name": "bcls", "alpha": 0.1}


def test_dotted_keys_reach_inside_at_any_depth():
    base = {"loss": {"name": "infonce+kendall-sw-hs"}}
    assert merge(base, {"loss.infonce.temperature": 0.1})["loss"]["infonce"] == {"temperature": 0.1}


def test_merge_copies_its_arguments():
    space = [1, 2]
    merged = merge({}, {"drops": space})
    merged["drops"].append(3)
    assert space == [1, 2]


def test_a_dotted_key_into_a_number_raises():
    with pytest.raises(ValueError, match=r"`lr.x`: expected a mapping in `lr`"):
        merge({"lr": 1.0}, {"lr.x": 2})


def test_labels_are_short():
    assert label({}) == ""
    assert label({"loss.kendall.alpha": 0.1}) == "alpha=0.1"


ROOT = Path(__file__).parents[2]
FILES = sorted(
    [*(ROOT / "configs" / "paper").glob("*.yaml"), *(ROOT / "configs" / "flickr8k" / "sweeps").glob("*.yaml")]
)


#: Several tests read the same files and change nothing in them.
sweep_of = cache(read_sweep)


def name(path):
    return str(path.relative_to(ROOT / "configs"))


def test_every_trained_table_of_the_paper_has_a_sweep_file():
    tables = {table for path in FILES for table in sweep_of(path).paper}
    assert tables == {"III", "IV", "V", "VI", "VII", "VIII", "IX"}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_run_can_be_built(path):
    sweep = sweep_of(path)
    for run in [*plan_trials(sweep), *plan_runs(sweep)]:
        if not run.members:
            make_loss(run.settings["loss"])
            model = dict(run.settings["model"])
            if model.get("image") == "features":
                model["features"] = 1
            assert model_config(model).name == model["name"]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_sweep_file_has_its_command_and_names_existing_files(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(f"# bcls sweep configs/{name(path)} --data ") for line in lines)
    assert (sweep_of(path).search is not None) == (path in SEARCHING)
    choice = sweep_of(path).judged_choice
    assert choice is None or choice.is_file()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_the_papers_rows_are_there(path):
    sweep, tables = sweep_of(path), read_paper(ROOT / "results" / "paper.json")
    for row in sweep.configurations:
        for table, method in row.paper.items():
            assert paper_metrics(tables, table, method, sweep.columns)


#: Searches with configurations that had fewer settings to try; only their results are kept.
OLD = {"dual-first", "vsepp-first", "saf-grid", "sgr-grid"}
SEARCHING = [path for path in FILES if re.search(r"^search:", path.read_text(encoding="utf-8"), re.MULTILINE)]
#: `record` compares no losses: its rows are different models, each of which may have settings of its own.
SEARCHES = [path for path in SEARCHING if path.stem not in OLD | {"record"}]


def test_make_evidence_runs_every_sweep_that_is_not_replaced():
    command = ["make", "-n", "evidence", "DATA=data", "JUDGEMENTS=ratings"]
    steps = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (kept,) = re.findall(r"scripts\.evidence_page (.*)", steps)
    files = {path.stem for path in FILES if path.parent.name == "sweeps"} - OLD - {"sgraf-grid"}
    assert {folder.removeprefix("sweeps/") for folder in kept.split()} == files | {"noise"}
    loops = {word for words in re.findall(r"for s in ([^;]+);", steps) for word in words.split()}
    assert loops | {"variants"} == files


@pytest.mark.parametrize("path", SEARCHES, ids=name)
def test_losses_that_are_compared_have_the_same_number_of_trials(path):
    sweep = sweep_of(path)
    trained = [row for row in sweep.configurations if not row.ensemble]
    planned = plan_trials(sweep)
    each = sweep.search.budget * len(sweep.search.seeds)
    assert len({run.key for run in planned}) == len(planned) == each * len(trained)
    if path.stem not in {"tuned", "variants"}:
        common = {row.name: [] for row in trained}
        for run in planned:
            common[run.configuration].append({key: run.point[key] for key in sweep.search.space})
        assert all(points == common[trained[0].name] for points in common.values())


def test_an_ensemble_of_saf_and_sgr_uses_their_trials_and_runs():
    saf, sgr, both = (sweep_of(ROOT / f"configs/flickr8k/sweeps/{one}.yaml") for one in ("saf", "sgr", "sgraf"))
    for plan in (plan_trials, plan_runs):
        apart = {run.key for sweep in (saf, sgr) for run in plan(sweep)}
        assert apart == {run.key for run in plan(both) if not run.members}


def test_the_papers_settings_are_the_same_on_every_model():
    runs = plan_runs(sweep_of(ROOT / "configs/flickr8k/sweeps/paper-exact.yaml"))
    assert {run.settings["model"]["name"] for run in runs} == {"vsepp", "dual", "saf", "sgr"}
    free = {"model", "features", "loss", "precision", "warm_negatives"}
    settings = {json.dumps({key: run.settings[key] for key in run.settings if key not in free}) for run in runs}
    assert len(settings) == 1
    losses = {(json.dumps(run.settings["loss"], sort_keys=True), run.settings["warm_negatives"]) for run in runs}
    assert losses == {
        ('{"alpha": 0.2, "beta": 0.1, "gamma": 50, "name": "bcls", "reduction": "sum"}', 0),
        ('{"name": "triplet-hn", "reduction": "sum"}', 0),
        ('{"alpha": 0.2, "beta": 0.1, "name": "kendall-sw-hs", "reduction": "sum"}', 2),
    }
    assert (BCLSLoss().weight, BCLSLoss().binary.lse) == (1.0, "sum")
