"""What the README promises is there: its make targets, its table, its files. (test_docs runs its Python.)"""

import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from bcls.experiments.summary import summarise

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_the_one_that_was_measured():
    from scripts import demo_table

    written = README.split(demo_table.START)[1].split(demo_table.END)[0].strip()
    assert written == demo_table.table()


@pytest.mark.parametrize("name", ["main_table", "model_table"])
def test_tables_of_the_evidence_are_those_that_were_measured(name):
    made = import_module(f"scripts.{name}")
    written = README.split(made.START)[1].split(made.END)[0].strip()
    assert written == made.table()


@pytest.mark.parametrize(
    ("said", "sweep", "row", "figure", "digits"),
    [
        (r"seven models reaches an RSUM of ([\d.]+\d)", "together", "all seven", "rsum", 1),
        (r"both counts: RSUM ([\d.]+)", "beyond", "recommended", "rsum", 1),
        (r"both counts: RSUM [\d.]+ against ([\d.]+)", "beyond", "BCLS", "rsum", 1),
        (r"experts ([\d.]+) against [\d.]+ on the 300", "beyond", "recommended", "report_expert_tau_c", 3),
        (r"experts [\d.]+ against ([\d.]+) on the 300", "beyond", "BCLS", "report_expert_tau_c", 3),
    ],
)
def test_figures_in_sentences_were_measured(said, sweep, row, figure, digits):
    rows = {one.name: one for one in summarise(ROOT / "results" / "flickr8k" / sweep).rows}
    (written,) = re.findall(said, " ".join(README.split()))
    assert written == f"{rows[row].test[figure].mean:.{digits}f}"


def test_the_evidence_is_made_from_the_results(tmp_path, monkeypatch):
    from scripts import evidence_page

    monkeypatch.setattr(evidence_page, "PAGE", tmp_path / "evidence.md")
    evidence_page.main([])
    assert (tmp_path / "evidence.md").read_text() == (ROOT / "docs" / "evidence.md").read_text()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE))))
def test_make_targets_exist(target):
    run = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_it_starts_with_what_it_does_and_the_two_commands():
    assert README.index("make demo") < README.index("make test") < README.index("## Use a loss")
    assert README.splitlines()[2].startswith("Train an image-text retrieval model")


def test_losses_named_are_there():
    from bcls import losses

    for name in set(re.findall(r"`(\w+Loss)`", README)):
        assert hasattr(losses, name)
