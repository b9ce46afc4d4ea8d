"""What the README promises is there: its make targets, its table, its files. (test_docs runs its Python.)"""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_the_one_that_was_measured():
    from scripts import demo_table

    written = README.split(demo_table.START)[1].split(demo_table.END)[0].strip()
    assert written == demo_table.table()


def test_the_main_table_is_the_one_that_was_measured():
    from scripts import main_table

    written = README.split(main_table.START)[1].split(main_table.END)[0].strip()
    assert written == main_table.table()


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
