import json
from pathlib import Path

import pytest

from bcls.cli.report import main
from bcls.experiments import SweepSettings, results, run_sweep
from tests.experiments.factories import data, write
from tests.experiments.sweep_factory import line, sweep

PAPER = str(Path(__file__).parents[2] / "results" / "paper.json")


@pytest.fixture
def folder(tmp_path):
    return sweep(tmp_path / "made", [line("triplet-hn", 1, 1.0), line("bcls", 1, 2.0, 0.4, paper={"VIII": "BCLS"})])


def test_markdown_is_printed_unless_a_file_is_named(folder, tmp_path, capsys):
    assert main([str(folder), "--paper", PAPER]) == 0
    printed = capsys.readouterr().out
    assert "| the paper, Flickr30K: BCLS (Table VIII) | 1 | 415.6 |" in printed
    assert (
        main([str(folder), "--paper", PAPER, "--markdown", str(tmp_path / "a.md"), "--html", str(tmp_path / "a.html")])
        == 0
    )
    assert capsys.readouterr().out == ""
    assert (tmp_path / "a.md").read_text(encoding="utf-8") == printed
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_has_rows_and_verdicts(folder, capsys):
    assert main([str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["rows"]] == ["triplet-hn", "bcls"]
    assert {claim["verdict"] for claim in found["claims"]} == {"inconclusive", "no data"}
    (finding,) = next(claim["findings"] for claim in found["claims"] if claim["findings"])
    assert {"difference", "low", "high", "p_value", "basis"} == finding["test"].keys()


def test_a_gallery_of_two_rows(tmp_path, capsys, monkeypatch):
    runs = {"HN": {"loss": {"name": "triplet-hn"}}, "BCLS": {}}
    out = str(tmp_path / "out")
    run_sweep(write(tmp_path / "a.yaml", runs=runs), SweepSettings(str(data(tmp_path / "data")), out, device="cpu"))
    page = tmp_path / "g.html"
    words = [out, "--data", str(tmp_path / "data"), "--html", str(page), "--gallery"]
    read = []
    real = results.summarize
    monkeypatch.setattr(results, "summarize", lambda folder: read.append(folder) or real(folder))
    assert main([*words, "HN", "BCLS"]) == 0
    assert read == [out]
    assert "A: HN. B: BCLS." in page.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="--gallery"):
        main([*words, "HN", "BCSL"])
    with pytest.raises(ValueError, match="two configurations"):
        main([*words, "HN"])
    with pytest.raises(ValueError, match="one DIR, --data and --html"):
        main([out, "--gallery", "HN", "BCLS"])
    with pytest.raises(ValueError, match=r"two configurations.*'HN' and 'HN'"):
        main([*words, "HN", "HN"])
    for flag, value in (("--json", []), ("--paper", [PAPER]), ("--markdown", [str(tmp_path / "a.md")])):
        with pytest.raises(ValueError, match=f"`{flag}`: expected no --gallery"):
            main([*words, "HN", "BCLS", flag, *value])
    with pytest.raises(ValueError, match="`--data`: expected --gallery"):
        main([out, "--data", str(tmp_path / "data")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "`DIR`: expected folders"),
        (["nowhere"], "run `bcls sweep"),
        (["nowhere", "--html", "no/such/folder/a.html"], "--html"),
    ],
)
def test_bad_input_is_named(words, message):
    with pytest.raises(ValueError, match=message):
        main(words)
