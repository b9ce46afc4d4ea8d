"""Report on sweeps: tables, paired tests, charts and claims."""

import json
from pathlib import Path

import numpy as np
import pytest

from bcls.evaluation.evaluator import compare
from bcls.evaluation.recall import QueryRanks
from bcls.experiments.claims import read_paper
from bcls.experiments.report import as_html, as_markdown, build, main_table
from bcls.experiments.results import Spread, compare_rows, spread, summarize
from bcls.reports.blocks import Chart, Table
from tests.experiments.sweep_factory import line, ranks, sweep
from tests.reports.page_reader import charts_of, check_page_is_closed

PAPER = Path(__file__).parents[2] / "results" / "paper.json"


def test_metrics_are_averaged_over_seeds(tmp_path):
    lines = [line("bcls", seed, 300.0 + seed) for seed in (1, 2, 3)] + [line("triplet-hn", 1, 290.0)]
    lines.append({**line("bcls", 4, 0.0), "failed": "NaN"})
    summary = summarize(sweep(tmp_path / "a", lines))
    bcls, hard = summary.rows
    assert bcls.metrics["rsum"] == spread([301.0, 302.0, 303.0]) == Spread(302.0, 1.0, 3)
    assert (bcls.failed, hard.metrics["rsum"].error, summary.split) == (1, None, "validation")
    assert [round(one["rsum"], 1) for one in bcls.history] == [75.5, 151.0, 226.5, 302.0]
    assert summary.seconds == 5 * 60


def test_test_split_is_shown_if_every_configuration_is_tested(tmp_path):
    lines = [line("bcls", 1, 1.0, test={"rsum": 2.0}), line("triplet-hn", 1, 1.0)]
    assert summarize(sweep(tmp_path / "a", lines)).split == "validation"
    lines[1]["test"] = {"rsum": 1.5}
    summary = summarize(sweep(tmp_path / "b", lines))
    assert summary.split == "test"
    table = main_table(summary)
    assert table.headings[2:4] == ["RSUM, validation", "RSUM"]
    assert [[cell.text for cell in row[2:]] for row in table.rows] == [["1.0", "2.0"], ["1.0", "1.5"]]


def test_configuration_that_diverged_with_every_seed(tmp_path):
    lines = [line("bcls", 1, 1.0, test={"rsum": 2.0}), {**line("triplet-hn", 1, 1.0), "failed": "NaN"}]
    summary = summarize(sweep(tmp_path / "a", lines))
    assert summary.split == "test"
    assert [[cell.text for cell in row] for row in main_table(summary).rows] == [
        ["bcls", "1", "1.0", "2.0"],
        ["triplet-hn", "0 (1 diverged)", "", ""],
    ]


def test_best_mean_is_bold_and_values_of_the_paper_follow(tmp_path):
    lines = [line("bcls", seed, 300.0 + seed, paper={"VIII": "BCLS"}) for seed in (1, 2)]
    lines += [line("triplet-hn", 1, 290.0, 0.4)]
    table = main_table(summarize(sweep(tmp_path / "a", lines)), read_paper(PAPER))
    assert table.headings == ["configuration", "seeds", "RSUM", "tau-a"]
    texts = [[cell.text for cell in row] for row in table.rows]
    assert texts == [
        ["bcls", "2", "301.5 ± 0.7", "0.300 ± 0.000"],
        ["the paper, Flickr30K: BCLS (Table VIII)", "1", "415.6", ""],
        ["triplet-hn", "1", "290.0", "0.400"],
    ]
    assert [[cell.bold for cell in row[2:]] for row in table.rows] == [[True, False], [False, False], [False, True]]


def test_paired_test_equals_compare(tmp_path):
    folder = sweep(tmp_path / "a", [line("bcls", 1, 300.0), line("triplet-hn", 1, 290.0)])
    summary = summarize(folder)
    a, b = summary.rows
    stored = [ranks(folder, row.keys[1], seed) for seed, row in enumerate(summary.rows)]
    found = compare_rows(a, b, "validation")

    class Split:
        image_of_caption = stored[0]["owner"].astype(np.int64)
        images, captions = stored[0]["i2t"], stored[0]["t2i"]

    expected = compare(Split, *(QueryRanks(one["i2t"].astype(np.int64), one["t2i"].astype(np.int64)) for one in stored))
    assert found["difference"] == pytest.approx(expected["difference_rsum"])
    assert found["difference_low"] < found["difference"] < found["difference_high"]
    assert compare_rows(a, b, "test") is None


def test_best_bcls_configuration_is_tested_against_the_others(tmp_path):
    lines = [line("bcls", 1, 300.0), line("triplet-hn", 1, 320.0)]
    together = {"ensemble": ["bcls", "triplet-hn"], "settings": lines[0]["settings"]}
    folder = sweep(tmp_path / "a", [*lines, line("both", 1, 310.0, **together)])
    for seed, row in enumerate(summarize(folder).rows):
        ranks(folder, row.keys[1], seed)
    section, _ = build([summarize(folder)])
    heads = [block.headings[0] for block in section.blocks if isinstance(block, Table)]
    assert "RSUM of both minus that of" in heads


def test_results_come_before_claims(tmp_path):
    settings = {"model": {"name": "dual"}, "loss": {"name": "bcls"}}
    table = sweep(
        tmp_path / "table",
        [line(loss, seed, 300.0 + seed) for loss in ("triplet-sn", "triplet-hn", "bcls") for seed in (1, 2)],
    )
    for row in summarize(table).rows:
        ranks(table, row.keys[1], len(row.name))
    points = [
        line("g", 1, 300.0 + alpha, name=f"g {alpha}", point={"loss.alpha": alpha}, settings=settings)
        for alpha in (0.0, 0.2, 0.4)
    ]
    search = {
        "measure": "rsum",
        "method": "random",
        "spaces": {"bcls": {"lr": [0.1, 0.2]}},
        "sizes": {"bcls": 2},
        "tried": {"bcls": 2},
        "chosen": {"bcls": {"lr": 0.1}},
    }
    found = sweep(tmp_path / "found", [line("bcls", 1, 1.0), line("bcls", 2, 1.0, phase="trial")], search=search)
    folders = [table, sweep(tmp_path / "grid", points, file="g.yaml"), found]
    sections = build([summarize(folder) for folder in folders], read_paper(PAPER))
    assert [one.title for one in sections] == ["table", "grid", "found", "Claims of the paper"]
    titles = [block.title for one in sections for block in one.blocks if isinstance(block, Chart)]
    assert titles == ["Training loss", "Validation RSUM", "RSUM against alpha", "tau-a against alpha"]
    (alpha,) = (block for block in sections[1].blocks if isinstance(block, Chart) and block.title.startswith("RSUM"))
    assert [one.name for one in alpha.lines] == ["BCLS", "w/o BCLS"]
    assert alpha.lines[1].level == 301.5
    markdown, page = as_markdown(sections), as_html(sections)
    assert "RSUM of bcls minus that of" in markdown
    assert "lr 0.1" in markdown
    assert [alt.partition(" by ")[0] for alt in charts_of(check_page_is_closed(page, script=False))] == titles


def test_sweeps_that_test_no_claim_have_no_section_of_claims(tmp_path):
    folder = sweep(tmp_path / "a", [line(loss, 1, 300.0) for loss in ("xclr", "cwcl")])
    assert [one.title for one in build([summarize(folder)])] == ["a"]


def test_grid_chart_has_a_line_for_each_configuration(tmp_path):
    lines = [
        line(row, 1, rsum + alpha, name=f"{row} ({alpha})", point={"loss.alpha": alpha})
        for row, rsum in (("bcls", 300.0), ("ladder", 200.0))
        for alpha in (0.1, 0.2)
    ]
    section, _ = build([summarize(sweep(tmp_path / "grid", lines))])
    (drawn,) = (block for block in section.blocks if isinstance(block, Chart) and block.title.startswith("RSUM"))
    assert {one.name: one.points for one in drawn.lines} == {
        "bcls": [(0.1, 300.1), (0.2, 300.2)],
        "ladder": [(0.1, 200.1), (0.2, 200.2)],
    }


@pytest.mark.parametrize("name", ["sweep.json", "results.jsonl"])
def test_damaged_and_missing_files_are_errors(tmp_path, name):
    folder = sweep(tmp_path / "a", [line("bcls", 1, 1.0)])
    (folder / name).write_text('{"', encoding="utf-8")
    with pytest.raises(ValueError, match="damaged"):
        summarize(folder)
    (folder / name).unlink()
    with pytest.raises(ValueError, match="run `bcls sweep"):
        summarize(folder)


def test_summary_is_serializable(tmp_path):
    from dataclasses import asdict

    assert json.dumps(asdict(summarize(sweep(tmp_path / "a", [line("bcls", 1, 1.0)])).rows[0]))


def test_the_number_of_seeds_is_that_of_the_finished_runs(tmp_path):
    lines = [line("bcls", seed, 1.0) for seed in (1, 2)] + [line("sam", 1, 1.0)]
    folder = sweep(tmp_path / "a", lines, seeds=[1, 2, 3])
    assert "made, validation split, 1 to 2 seeds: mean" in as_markdown(build([summarize(folder)]))
    (folder / "results.jsonl").write_text(json.dumps(lines[0]) + "\n", encoding="utf-8")
    assert "made, validation split, 1 seed: mean" in as_markdown(build([summarize(folder)]))


def test_digits_of_differences(tmp_path):
    lines = [line("bcls", seed, 300.84 + seed, tau=0.3105) for seed in (1, 2)]
    lines += [line("sam", seed, 300.0 + seed, tau=0.31) for seed in (1, 2)]
    page = as_markdown(build([summarize(sweep(tmp_path / "a", lines))]))
    assert "| +0.8 | -2.2 to +3.9 | seeds | 0.3568 | inconclusive |" in page
    assert "| +0.0005 | +0.0005 to +0.0005 | seeds | 0.0000 | held |" in page


def test_digits_do_not_depend_on_names(tmp_path):
    lines = [line("bcls", seed, 300.0, tau=0.3105) for seed in (1, 2)]
    lines += [line("sam", seed, 300.0, tau=0.31, name="sam, best by RSUM") for seed in (1, 2)]
    page = as_markdown(build([summarize(sweep(tmp_path / "a", lines))]))
    assert "minus sam, best by RSUM (soft) | +0.0005 | +0.0005 to +0.0005 | seeds | 0.0000 | held |" in page


def test_rows_of_sam_name_the_sampling(tmp_path):
    settings = {"model": {"name": "dual"}, "loss": {"name": "sam", "sampling": "least-similar"}}
    lines = [line("bcls", 1, 2.0), line("SAM", 1, 1.0, settings=settings)]
    lines.append({**lines[1], "phase": "trial"})
    search = {"measure": "rsum", "method": "grid", "spaces": {"SAM": {"lr": [1.0]}}, "chosen": {"SAM": {"lr": 1.0}}}
    folder = sweep(tmp_path / "a", lines, search={**search, "sizes": {"SAM": 1}, "tried": {"SAM": 1}})
    page = as_markdown(build([summarize(folder)]))
    assert "| SAM (least-similar) | 1 | 1.0 |" in page
    assert "| SAM (least-similar) | 1 | 1 | lr: 1.0 | lr 1.0 |" in page
    assert "rsum: bcls minus SAM (least-similar) |" in page


def test_tested_trials_are_counted(tmp_path):
    search = {"measure": "rsum", "method": "grid", "spaces": {}, "sizes": {}, "tried": {}, "chosen": {}}
    lines = [line("bcls", 1, 2.0, test={"rsum": 2.0}), line("bcls", 1, 1.0, phase="trial", key="other")]
    lines.append({**lines[0], "phase": "trial"})
    page = as_markdown(build([summarize(sweep(tmp_path / "a", lines, search=search))]))
    assert "Of the 2 runs of the search, those not chosen are not tested.\n" in page
    lines[1]["test"] = {"rsum": 1.0}
    page = as_markdown(build([summarize(sweep(tmp_path / "b", lines, search=search))]))
    assert "Of the 2 runs of the search, those not chosen are not tested, except for 1.\n" in page


def test_a_search_with_different_numbers_of_trials_is_described_as_such(tmp_path):
    lines = [line("bcls", 1, 2.0), line("bcls", 1, 1.0, phase="trial", key="other"), line("sam", 1, 1.0)]
    search = {"measure": "rsum", "method": "grid", "spaces": {"bcls": {}, "sam": {}}, "sizes": {"bcls": 4, "sam": 4}}
    for counts, text in (
        ({"bcls": 4, "sam": 4}, "the same number of settings for each"),
        ({"bcls": 4, "sam": 1}, "1 to 4"),
    ):
        about = {**search, "tried": counts, "chosen": {"bcls": {}, "sam": {}}}
        page = as_markdown(build([summarize(sweep(tmp_path / text, lines, search=about))]))
        assert f"its own best setting by validation rsum, from {text}" in page


def test_undefined_metrics_are_shown_as_nan(tmp_path):
    lines = [line("bcls", 1, 300.0, tau=float("nan")), line("bcls", 2, 302.0), line("sam", 1, 299.0)]
    summary = summarize(sweep(tmp_path / "a", lines))
    page = as_markdown(build([summary]))
    assert "| bcls | 2 | **301.0 ± 1.4** | nan ± nan |" in page
    assert np.isnan(summary.rows[0].metrics["tau"].mean)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("owner", lambda array: array + 90, "expected ranks of images"),
        ("t2i", lambda array: array[:-1], "expected ranks of images"),
        ("i2t", lambda array: array.astype(np.float32), "expected ranks of images"),
        ("i2t", lambda array: array * 0, "expected ranks of images"),
        ("i2t", lambda array: np.append(array, array[:1]), "expected ranks of the same images in each file"),
        ("i2t", None, "expected the array 'i2t', got t2i, owner"),
    ],
)
def test_damaged_ranks_are_errors(tmp_path, name, change, message):
    lines = [line(row, 1, 300.0) for row in ("bcls", "sam")]
    folder = sweep(tmp_path / "a", lines)
    for one in lines:
        arrays = ranks(folder, one["key"], 0)
    found = {key: array for key, array in arrays.items() if change or key != name}
    if change:
        found[name] = change(found[name])
    np.savez_compressed(folder / "ranks" / f"{lines[0]['key']}-validation.npz", **found)
    with pytest.raises(ValueError, match=message):
        build([summarize(folder)])


def test_trials_without_a_search_are_an_error(tmp_path):
    lines = [line("bcls", 1, 2.0), line("bcls", 1, 1.0, phase="trial", key="other")]
    with pytest.raises(ValueError, match=r"sweep\.json`: expected `search`, since there are trials"):
        summarize(sweep(tmp_path / "a", lines))
