"""Every file of experiments is one that `bcls sweep` takes, and the paper's rows that it names are there."""

from pathlib import Path

import pytest

from bcls.experiments.claims import paper_metrics, read_paper
from bcls.experiments.plan import plan_runs, plan_trials
from bcls.experiments.sweep_file import read_sweep
from bcls.models.config import model_config
from bcls.training.optimization import make_loss

ROOT = Path(__file__).parents[2]
FILES = sorted(
    [*(ROOT / "configs" / "paper").glob("*.yaml"), *(ROOT / "configs" / "flickr8k" / "sweeps").glob("*.yaml")]
)


def name(path):
    return str(path.relative_to(ROOT / "configs"))


def test_there_is_one_for_every_table_that_is_trained():
    tables = {table for path in FILES for table in read_sweep(path).paper}
    assert tables == {"III", "IV", "V", "VI", "VII", "VIII", "IX"}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_run_can_be_built(path):
    sweep = read_sweep(path)
    for run in [*plan_trials(sweep), *plan_runs(sweep)]:
        if not run.members:
            make_loss(run.settings["loss"])
            model = dict(run.settings["model"])
            if model.get("image") == "features":
                model["features"] = 1
            assert model_config(model).name == model["name"]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_says_how_to_run_it_and_names_files_that_are_there(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(f"# bcls sweep configs/{name(path)} --data ") for line in lines)
    choice = read_sweep(path).judged_choice
    assert choice is None or choice.is_file()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_the_papers_rows_are_there(path):
    sweep, tables = read_sweep(path), read_paper(ROOT / "results" / "paper.json")
    for row in sweep.configurations:
        for table, method in row.paper.items():
            assert paper_metrics(tables, table, method, sweep.columns)


def test_losses_that_are_compared_have_the_same_budget():
    for model in ("dual", "vsepp", "tuned"):
        sweep = read_sweep(ROOT / "configs" / "flickr8k" / "sweeps" / f"{model}.yaml")
        planned = plan_trials(sweep)
        counts = {row.name: sum(run.configuration == row.name for run in planned) for row in sweep.configurations}
        assert set(counts.values()) == {sweep.search.budget}
