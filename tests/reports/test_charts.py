"""Charts as images: alternative text, valid SVG, the same bytes for the same input."""

import base64
import sys
from threading import Thread
from xml.etree import ElementTree

import pytest

from bcls._core.extras import MissingExtraError
from bcls.reports.charts import COLORS, ChartLine, bar_chart, line_chart, log_log_chart

LINES = [ChartLine("a", [(1, 300.0), (2, 320.0), (3, 290.0)]), ChartLine("level", level=400.0)]


def svg_of(chart):
    return base64.b64decode(chart.src.removeprefix("data:image/svg+xml;base64,")).decode()


def texts_of(svg):
    root = ElementTree.fromstring(svg)  # noqa: S314
    return ["".join(one.itertext()) for one in root.iter() if one.tag.endswith("}text")]


def test_line_chart_has_title_axis_and_legend():
    chart = line_chart("RSUM", "epoch", LINES)
    assert chart.alt == "RSUM by epoch. a: 300 at 1, 290 at 3. level: 400 throughout."
    assert {"RSUM", "epoch", "a", "level", "1", "2", "3"} <= set(texts_of(svg_of(chart)))
    assert COLORS[0] in svg_of(chart)


def test_one_line_needs_no_legend_and_one_point_is_visible():
    chart = line_chart("t", "x", [ChartLine("only", [(1, 2.0)], color="#123456")])
    assert "only" not in texts_of(svg_of(chart))
    assert "#123456" in svg_of(chart)


def test_values_that_are_not_finite_are_left_out():
    nan = float("nan")
    points, band = [(1, nan), (2, 1.0), (3, float("inf")), (1e308, 1.0)], [(1, 0.0, nan), (2, 0.0, 2.0)]
    line = ChartLine("a", points, band=band)
    assert (line.points, line.band) == ([(2, 1.0)], [(2, 0.0, 2.0)])
    assert ChartLine("b", level=float("nan")).level is None
    assert line_chart("t", "x", [ChartLine("a", [(1, float("nan"))]), ChartLine("b", level=1.0)]) is None


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "$x^2", "_hidden", "\x07\ud800", "图像", "a & b"])
def test_any_name_gives_valid_svg(name):
    chart = line_chart(name, name, [ChartLine(name, [(0, 1.0), (1, 2.0)]), ChartLine("other", level=1.5)])
    texts = texts_of(svg_of(chart))
    shown = "��" if "\x07" in name else name
    assert [text.strip() for text in texts].count(shown) == 3


def test_bar_chart_shows_counts_and_shares():
    chart = bar_chart("Ranks", ["1", "2–5"], {"A": [3, 1], "B": [0, 0]})
    assert chart.alt == "Ranks. A: 1: 3 (75.0%), 2–5: 1 (25.0%). B: 1: 0 (0.0%), 2–5: 0 (0.0%)."
    assert {"Ranks", "1", "2–5", "3 (75.0%)", "0 (0.0%)", "A", "B"} <= set(texts_of(svg_of(chart)))


def test_log_log_chart_shares_one_legend():
    fast = ChartLine("fast", [(8, 0.1), (64, 0.5)])
    panels = {"ms": [fast, ChartLine("limit", [(8, 0.01), (64, 0.0)], dashed=True)], "MB": [fast]}
    texts = texts_of(log_log_chart("Losses, GPU", "B", panels))
    assert [texts.count(name) for name in ("fast", "limit", "ms", "MB", "Losses, GPU", "8", "64")] == [
        1,
        1,
        1,
        1,
        1,
        2,
        2,
    ]
    assert {"0.01", "0.1"} <= set(texts)  # numbers, not the source of mathematical text
    assert not [one for one in texts if "$" in one]


def test_user_styles_have_no_effect_and_are_kept():
    import matplotlib

    before = dict(matplotlib.rcParams)
    quiet = line_chart("t", "x", LINES)
    matplotlib.rcParams["font.size"] = 30
    try:
        assert line_chart("t", "x", LINES) == quiet
        assert matplotlib.rcParams["font.size"] == 30
    finally:
        matplotlib.rcParams.update(before)


def test_threads_draw_the_same():
    alone, found = line_chart("t", "x", LINES), []
    threads = [Thread(target=lambda: found.append(line_chart("t", "x", LINES))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r'^drawing charts needs matplotlib: pip install "bcls\[reports\]"$'):
        line_chart("t", "x", LINES)
