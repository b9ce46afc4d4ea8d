"""Sections with text, tables and charts, as HTML and as Markdown."""

import re

from bcls.reports.blocks import Cell, Chart, Section, Table, Terms, Text, as_html, as_markdown, markdown_table
from bcls.reports.charts import ChartLine
from tests.reports.page_reader import charts_of, check_page_is_closed


def test_names_are_escaped_in_html_and_markdown():
    name = "<script>alert(1)</script>|*x*"
    table = Table(["row", name], [[Cell(name), Cell("1", bold=True)]])
    chart = Chart(name, name, [ChartLine(name, [(0, 1.0), (1, 2.0)]), ChartLine(name, level=1.5)])
    sections = [Section(name, [table, Text(name), Terms([(name, name)]), chart])]
    read = check_page_is_closed(as_html(name, name, sections), script=False)
    assert read.text().count(name) >= 8
    assert charts_of(read) == [f"{name} by {name}. {name}: 1 at 0, 2 at 1. {name}: 1.5 throughout."]
    lines = table.as_markdown().splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in lines}) == 1
    assert "**1**" in lines[2]
    assert "<script" not in as_markdown("title", "lede", sections).replace("\\<script", "")


def test_words_are_aligned_left_and_numbers_right():
    texts = [["a", "BCLS minus SAM", "+0.1", ""], ["b", "8k", "-2 ± 1", ""], ["c", "as above", "one seed", ""]]
    table = Table.of_texts(["row", "comparison", "difference", "none"], texts)
    assert table.as_markdown().splitlines()[1] == "|---|---|---:|---:|"
    page = as_html("title", "", [Section("s", [table])])
    assert page.count('<td class="words">') == 3
    assert '<th scope="col" class="words">comparison</th><th scope="col">difference</th>' in page


def test_groups_of_rows_are_separate_bodies():
    table = Table.of_texts(["a"], [["1"], ["2"], ["3"]], [1, 2])
    assert [[row[0].text for row in rows] for rows in table.bodies] == [["1"], ["2", "3"]]
    assert as_html("title", "", [Section("s", [table])]).count("<tbody>") == 2


def test_chart_as_markdown_is_a_table_of_its_points():
    lines = [ChartLine("a", [(0, 1.0), (0.5, 2.0)]), ChartLine("b", [(0.5, 3.0)]), ChartLine("c", level=0.25)]
    assert Chart("RSUM", "alpha", lines).as_markdown() == (
        "RSUM:\n\n| alpha | a | b |\n|---|---:|---:|\n| 0 | 1 |  |\n| 0.5 | 2 | 3 |\n\nc: 0.25"
    )


def test_chart_without_points_is_left_out():
    section = Section("s", [Chart("t", "x", [ChartLine("a", [(0, float("nan"))])])])
    assert charts_of(check_page_is_closed(as_html("title", "", [section]), script=False)) == []


def test_markdown_table_keeps_its_cells():
    assert markdown_table(["a", "b"], [["**x**", "1"]], [True, True]) == "| a | b |\n|---|---|\n| **x** | 1 |"
