"""Files of ``bcls bench``, and docs/performance.md."""

import json

import pytest

from bcls.experiments.bench import LIMIT, draw, page, section
from benchmarks import roofline
from benchmarks.tables import keep
from scripts import performance_page

RESULT = {
    "subject": "losses",
    "title": "Losses",
    "axis": "B",
    "command": "bcls bench losses",
    "machine": "a machine",
    "python": "3.11",
    "torch": "2.13",
    "triton": "3.6",
    "rows": [
        {"path": "ours", "B": 128, "ms": 0.5, "MB": 1.0},
        {"path": "ours", "B": 1024, "ms": 2.0, "MB": 64.0},
        {"path": "loop | windows", "B": 128, "ms": 20.0, "MB": 3.0},
        {"path": LIMIT, "B": 128, "ms": 0.01, "MB": 0.0},
        {"path": LIMIT, "B": 1024, "ms": 0.02, "MB": 0.0},
    ],
}


def test_a_section_names_machine_command_and_measurements():
    text = section(RESULT)
    assert "`bcls bench losses` on a machine, torch 2.13, Triton 3.6" in text
    assert "| B | ours | loop \\| windows | copy of the matrix |\n" in text
    assert "| 1,024 | 2 |  | 0.02 |\n" in text
    assert "| 1,024 | 64 |  |\n" in text  # the copy takes no memory of its own, so it has no column there


def test_the_page_shows_plots_that_are_there():
    assert "![Losses](bench-losses.svg)" in page([RESULT], {"losses": "bench-losses.svg"})
    assert "![" not in page([RESULT])


def test_plots_are_the_same_every_time_and_name_every_path():
    pytest.importorskip("matplotlib")
    text = draw(RESULT)
    assert text == draw(RESULT)
    for row in RESULT["rows"]:
        assert row["path"] in text
    assert "a machine" in text


def test_the_performance_page_is_up_to_date():
    written = performance_page.PAGE.read_text(encoding="utf-8")
    assert written == performance_page.page(performance_page.MEASURED), "run python scripts/performance_page.py"


def test_the_performance_page_shows_all_kinds_of_files(tmp_path):
    files = {
        "bare": [{"what": "x", "ratio": 2.0, "bar": ">= 3"}],
        "full-cpu": {"title": "some rows", "machine": "2 threads", "torch": "2.13", "triton": "3.6",
                     "rows": [{"what": "y", "value": 1.0, "bar": 2.0, "side": "most"},
                              {"what": "z", "value": 1.0, "bar": None, "side": "most"}]},
        "bench-width": {"subject": "width", "title": "Width", "axis": "d", "command": "bcls bench width",
                        "machine": "m", "torch": "t", "triton": "-",
                        "rows": [{"path": "p", "d": 16, "ms": 1.0, "MB": 2.0}]},
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    text = performance_page.page(tmp_path)
    assert "`python -m benchmarks.bare` on an unrecorded machine" in text
    assert "| x | 2 | >= 3 | NO |" in text
    assert "Some rows. `python -m benchmarks.full` on 2 threads, torch 2.13, Triton 3.6" in text
    assert "| y | 1 | at most 2 | yes |\n| z | 1 |  |  |" in text
    assert "`bcls bench width` on m" in text


def test_the_performance_page_shows_the_roofline(tmp_path):
    work = {
        "mine_tiles": (4.0, 2.0),
        "product": (8.0, 1.0),
        "void at::native::(anonymous namespace)::fill<int>(int, F(int))": (1.0, 1.0),
        "Memset (Device)": (2.0, 3.0),
    }
    formulas = {"mine_tiles": (6_000_000, None), "product": (8_000_000, 32_000_000), "other": (1, 1)}
    rows = roofline.rows_of("BCLS, B = 8", work, formulas, (2.0, 3000.0, 16.0))
    keep(tmp_path / "roofline.json", rows, roofline.TITLE)
    text = performance_page.page(tmp_path)
    assert "## Roofline\n\nKernels of a forward and backward pass: " in text
    assert "`python -m benchmarks.roofline` on CPU" in text
    headings = "step | kernel | launches | us | MB | GB/s | % of copy | TFLOP/s | % of product | B x B copies"
    assert f"| {headings} |\n" in text
    assert "| BCLS, B = 8 | mine_tiles | 2 | 4 | 6 | 1,500 | 50 |  |  | 2 |\n" in text
    assert "| BCLS, B = 8 | product | 1 | 8 | 8 | 1,000 | 33.3 | 4 | 25 | 4 |\n" in text
    assert "| BCLS, B = 8 | no formula: Memset, fill | 4 | 3 |  |  |  |  |  | 1.5 |\n" in text
