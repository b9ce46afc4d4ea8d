"""``report.html`` of a run."""

import json
import sys

import pytest

from bcls.training.metrics_log import write_report
from tests.reports.page_reader import charts_of, check_page_is_closed

pytestmark = pytest.mark.usefixtures("charts")


@pytest.fixture
def folder(tmp_path):
    """A run with two steps and three validations, of which the second is the best."""
    lines = [{"kind": "step", "epoch": 1, "step": n, "loss": 1 / n, "lr": 0.1, "seconds": 61.0} for n in (1, 2)]
    lines += [
        {"kind": "validation", "epoch": n, "step": n, "rsum": rsum, "i2t_tau_a": 0.25, "best": best}
        for n, rsum, best in ((1, 100.0, True), (2, 120.5, True), (3, 110.0, False))
    ]
    folder = tmp_path / "a <b>"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text("model: {name: '<script>'}\nloss: {name: bcls}\ndata: scenes\n")
    (folder / "environment.json").write_text('{"torch": "2"}')
    return folder


def read(folder):
    return check_page_is_closed((folder / "report.html").read_text(encoding="utf-8"), script=False)


def test_report_has_charts_validations_and_settings(folder):
    write_report(folder)
    page = read(folder)
    assert [alt.partition(" by")[0] for alt in charts_of(page)] == [
        "Loss",
        "Learning rate",
        "Validation RSUM",
        "Validation tau",
    ]
    for text in (
        "a <b>",
        "model <script>, loss bcls, data scenes: 2 steps in",
        "model: {name: '<script>'}",
        '"torch": "2"',
        "120.50",
        "0.2500",
    ):
        assert text in page.text()
    assert "<strong>120.50</strong>" in (folder / "report.html").read_text(encoding="utf-8")
    assert len(page.all("strong")) == 3


def test_report_without_matplotlib_has_a_hint(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_report(folder)
    assert 'No charts: drawing charts needs matplotlib: pip install "bcls[reports]"' in read(folder).text()
    assert charts_of(read(folder)) == []


def test_report_without_steps_and_validations(folder):
    (folder / "metrics.jsonl").write_text("")
    write_report(folder)
    assert "No validation split." in read(folder).text()
    assert charts_of(read(folder)) == []
