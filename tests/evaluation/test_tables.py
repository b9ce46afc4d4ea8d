"""Table rows, JSON and printed tables."""

import json
import math

import pytest

from bcls.evaluation.tables import ROW, as_json, as_row, comparison_table, metric_table

FIGURES = dict(zip(ROW, (71.25, 92.0, 96.04, 52.96, 79.9, 86.0, 478.15), strict=True))


def test_the_order_of_a_row():
    assert as_row("markdown", "x", FIGURES) == "| x | 71.2 | 92.0 | 96.0 | 53.0 | 79.9 | 86.0 | 478.1 |"
    assert as_row("latex", "x", FIGURES) == r"x & 71.2 & 92.0 & 96.0 & 53.0 & 79.9 & 86.0 & 478.1 \\"


@pytest.mark.parametrize(
    ("kind", "name", "cell"),
    [
        ("markdown", r"a|b\c", r"| a\|b\\c |"),
        ("latex", "a_b & 50% {c}", r"a\_b \& 50\% \{c\} &"),
        ("latex", "a\\b~c^d#$", r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d\#\$ &"),
    ],
)
def test_names_are_escaped(kind, name, cell):
    assert as_row(kind, name, FIGURES).startswith(cell)


def test_an_unknown_row():
    with pytest.raises(ValueError, match="did you mean 'latex'"):
        as_row("latx", "x", FIGURES)


def test_json_has_no_nan():
    found = json.loads(as_json({"a": float("nan"), "b": float("inf"), "c": 1.5, "d": "nan", "e": 3}))
    assert found == {"a": None, "b": None, "c": 1.5, "d": "nan", "e": 3}


def test_tables_show_both_directions_intervals_and_missing_values(capsys):
    more = {"i2t_r1_low": 70.0, "i2t_r1_high": 72.5, "i2t_skew10": float("nan"), "t2i_skew10": 2.0, "ndcg": 0.12345}
    metric_table(FIGURES | more).print("a [b] c")
    shown = capsys.readouterr().out
    assert "a [b] c" in shown
    line = next(one for one in shown.splitlines() if "R@1 " in one)
    assert "71.2 (70.0 to 72.5)" in line
    assert "53.0" in line
    assert next(one for one in shown.splitlines() if "skewness" in one).split("│")[2].strip() == "-"
    assert "0.1235" in shown or "0.1234" in shown


def test_rows_keep_their_order_and_their_groups():
    metrics = {"i2t_r1": 1.0, "t2i_r1": 2.0, "i2t_skew10": 3.0, "t2i_skew10": math.nan, "qbnorm_rsum": 4.0}
    bodies = metric_table(metrics).bodies
    assert [[[cell.text for cell in row] for row in body] for body in bodies] == [
        [["R@1", "1.0", "2.0"]],
        [["hubness: skewness of first 10", "3.0", "-"]],
        [["QB-Norm RSUM", "4.0", ""]],
    ]


def test_two_models_side_by_side():
    metrics = {f"{who}_{key}": 50.0 for who in ("a", "b", "difference") for key in ROW}
    metrics |= {"difference_rsum_low": -1.0, "difference_rsum_high": 2.0, "p_rsum": 0.25}
    table = comparison_table(metrics)
    rows = [[cell.text for cell in row] for row in table.rows]
    assert all(len(row) == len(table.headings) for row in rows)
    assert rows[0] == ["R@1 i2t", "50.0", "50.0", "+50.0", "", ""]
    assert rows[-1] == ["RSUM", "50.0", "50.0", "+50.0", "-1.0 to +2.0", "0.2500"]
