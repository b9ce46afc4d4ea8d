"""docs/performance.md is what the measurements say."""

import json

from scripts import performance_page


def test_the_page_is_made_from_the_measurements():
    written = performance_page.PAGE.read_text(encoding="utf-8")
    assert written == performance_page.page(performance_page.MEASURED), "run python scripts/performance_page.py"


def test_all_kinds_of_files(tmp_path):
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
    assert "`python -m benchmarks.bare` on a machine that was not recorded" in text
    assert "| x | 2 | >= 3 | NO |" in text
    assert "Some rows. `python -m benchmarks.full` on 2 threads, torch 2.13, Triton 3.6" in text
    assert "| y | 1 | at most 2 | yes |\n| z | 1 |  |  |" in text
    assert "`bcls bench width` on m" in text
