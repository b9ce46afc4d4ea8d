"""The README: tables and numbers are those of the results, commands and names exist. (test_docs runs its Python.)"""

import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from bcls.experiments.claims import INCONCLUSIVE, check_claims
from bcls.experiments.results import summarize

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Lines that a browser or an editor shows without scrolling, with the image.
FIRST_SCREEN = 30


@pytest.mark.parametrize("name", ["demo_table", "model_table"])
def test_tables_are_those_of_the_results(name):
    made = import_module(f"scripts.{name}")
    written = made.PAGE.read_text(encoding="utf-8").split(made.START)[1].split(made.END)[0].strip()
    assert written == made.table()


#: Numbers in the sentences below the table of models, and where they come from.
SENTENCES = [
    (r"no dropout, its RSUM is ([\d.]+\d) there", "paper-exact", "VSE++ BCLS", "rsum", 1),
    (r"that of Triplet-HN ([\d.]+\d)\.", "paper-exact", "VSE++ Triplet-HN", "rsum", 1),
    (r"experts ([\d.]+) on the 300", "both", "dense Kendall, wide", "report_expert_tau_c", 3),
    (r"dense Kendall loss: RSUM ([\d.]+\d)", "both", "dense Kendall, wide", "rsum", 1),
    (r"best RSUM of the first row, ([\d.]+\d);", "dual", "T-SN + dense Kendall", "rsum", 1),
    (r"in the second row it has ([\d.]+\d),", "both-search", "T-SN + dense Kendall", "rsum", 1),
    (r"image networks reaches an RSUM of ([\d.]+\d) with BCLS", "record", "pixels BCLS", "rsum", 1),
    (r"with BCLS, SGRAF ([\d.]+\d),", "record", "SGRAF BCLS", "rsum", 1),
    (r"mean score of four models ([\d.]+\d)\.", "record", "cross-attention", "rsum", 1),
]


SEARCHED = r"RSUM is ([\d.]+) below that of Triplet-SN \(three seeds; standard deviations ([\d.]+) and ([\d.]+);"


@pytest.mark.parametrize(("sentence", "sweep", "row", "metric", "digits"), SENTENCES)
def test_numbers_in_sentences_are_those_of_the_results(sentence, sweep, row, metric, digits):
    rows = {one.name: one for one in summarize(ROOT / "results" / "flickr8k" / sweep).rows}
    (written,) = re.findall(sentence, " ".join(README.split()))
    assert written == f"{rows[row].test[metric].mean:.{digits}f}"


def test_p_values_are_those_of_the_table_and_of_the_claims():
    from scripts import evidence_page, model_table

    ((here, among),) = re.findall(r"after an unequal search: p ([\d.]+) here, ([\d.]+) among", " ".join(README.split()))
    (row,) = (one for one in model_table.table().splitlines() if one.startswith("| VSE++"))
    assert f"; p {here})" in row
    findings = [one for claim in check_claims(evidence_page.summaries(evidence_page.KEPT)) for one in claim.findings]
    (tested,) = (one for one in findings if "vsepp" in one.where and one.what == "rsum: BCLS minus Triplet-SN")
    assert f"{tested.adjusted:.2f}" == among
    assert tested.verdict == INCONCLUSIVE
    assert row.split("|")[1].strip().endswith("*")


def test_the_difference_after_an_equal_search_is_that_of_the_results():
    from scripts.evidence_page import searched_vsepp

    (written,) = re.findall(SEARCHED, " ".join(README.split()))
    ours, other = (searched_vsepp()[row] for row in ("BCLS", "Triplet-SN"))
    numbers = other["rsum"] - ours["rsum"], ours["deviation"], other["deviation"]
    assert written == tuple(f"{number:.1f}" for number in numbers)


def test_every_number_in_sentences_is_checked():
    text = " ".join(README.split("<!-- end of models -->")[1].split("## More")[0].split())
    patterns = [sentence for sentence, *_ in SENTENCES]
    patterns += [r"p ([\d.]+) here", r"([\d.]+) among", r"and ([\d.]+) s to encode", SEARCHED]
    matches = [found for pattern in patterns for found in re.finditer(pattern, text)]
    checked = {found.start(group) for found in matches for group in range(1, 1 + len(found.groups()))}
    assert {found.start() for found in re.finditer(r"\d+\.\d+", text)} == checked


def test_evidence_page_is_made_from_the_results(tmp_path, monkeypatch):
    from scripts import evidence_page

    monkeypatch.setattr(evidence_page, "PAGE", tmp_path / "evidence.md")
    monkeypatch.setattr(evidence_page, "PLOTS", tmp_path)
    evidence_page.main([])
    for name in ("evidence.md", "evidence-details.md"):
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text()
    plots = re.findall(r"images/(evidence-\w+\.svg)", (tmp_path / "evidence.md").read_text())
    assert len(plots) == 3
    for plot in plots:
        made, stored = (points(folder / plot) for folder in (tmp_path, ROOT / "docs" / "images"))
        assert len(made) > 20
        assert made == pytest.approx(stored, abs=1)  # of some hundred


def points(plot):
    """Coordinates of the points and ticks of a plot."""
    found = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', plot.read_text(encoding="utf-8"))
    return [float(value) for pair in found for value in pair]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE))))
def test_make_targets_exist(target):
    run = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^bcls ([a-z]+)", README, re.MULTILINE))))
def test_commands_exist(command):
    from bcls.cli.main import COMMANDS

    assert command in COMMANDS


def test_it_has_at_most_150_lines():
    assert len(README.splitlines()) <= 150


def test_first_screen_has_purpose_image_installation_example_and_the_two_commands():
    lines = README.splitlines()
    first = "\n".join(lines[:FIRST_SCREEN])
    assert lines[2].startswith("Train, evaluate and use image-text retrieval models")
    parts = ["](docs/images/", "pip install", "```python", "BCLSLoss()(", "make demo", "make test"]
    places = [first.index(part) for part in parts]
    assert places == sorted(places)


def test_losses_named_are_there():
    from bcls import losses

    names = set(re.findall(r"`(\w+Loss)`", README))
    assert len(names) > 5
    assert {name for name in names if not hasattr(losses, name)} == set()
