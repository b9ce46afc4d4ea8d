"""The demo end to end, small: every file it promises, the same figures twice, nothing lost on the way."""

import json

import numpy as np
import pytest

from bcls.cli import main as cli
from bcls.demo import run as demo
from bcls.demo.results import FIGURES, LOSSES, Run, Spread, summary
from bcls.demo.settings import DemoSettings
from bcls.evaluation import kendall, recalls

SMALL = ["--images", "120", "--seeds", "1", "--epochs", "2", "--batch", "16"]


def test_end_to_end(tmp_path, capsys):
    out = tmp_path / "made" / "here"
    assert cli.main(["demo", *SMALL, "--out", str(out), "--json", "--save_images"]) == 0
    captured = capsys.readouterr()
    figures = json.loads(captured.out)  # standard output is JSON alone
    assert list(figures) == list(LOSSES)
    assert all(set(row) == {key for key, _, _ in FIGURES} for row in figures.values())
    assert "training" in captured.err
    results = json.loads((out / "results.json").read_text())
    assert results["summary"] == figures
    assert results["settings"]["sizes"] == [90, 12, 18]
    assert [(one["loss"], one["seed"]) for one in results["runs"]] == [(loss, 0) for loss in LOSSES]
    assert "<table" in (out / "report.html").read_text()
    assert len(list((out / "scenes" / "images").glob("*.png"))) == 120
    splits = [json.loads(line)["split"] for line in (out / "scenes" / "captions.jsonl").read_text().splitlines()]
    assert [splits.count(name) for name in ("train", "val", "test")] == [450, 60, 90]
    assert not list(out.rglob("*.tmp"))


def test_table_on_the_terminal_and_the_same_figures_twice(tmp_path, capsys):
    tables = []
    for name in ("a", "b"):
        assert cli.main(["demo", *SMALL, "--out", str(tmp_path / name)]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0].replace("/a/", "/b/") == tables[1]
    assert all(name in tables[0] for name in LOSSES.values())
    assert "report.html" in tables[0]
    assert "±" not in tables[0]  # one seed has no spread


def test_interrupted_demo_keeps_its_rounds(tmp_path, monkeypatch, capsys):
    real, calls = demo.train, []

    def stops(loss, seed, *rest):
        calls.append((loss, seed))
        if seed == 1:
            raise KeyboardInterrupt
        return real(loss, seed, *rest)

    monkeypatch.setattr(demo, "train", stops)
    assert cli.main(["demo", *SMALL, "--seeds", "2", "--out", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().err
    kept = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [one["loss"] for one in kept] == list(LOSSES)
    assert (tmp_path / "report.html").exists()


def test_missing_extra_is_said_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert cli.main(["demo", *SMALL, "--out", str(tmp_path / "x")]) == 2
    assert 'pip install "bcls[plots]"' in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_out_that_is_a_file(tmp_path, capsys):
    (tmp_path / "taken").write_text("mine")
    assert cli.main(["demo", *SMALL, "--out", str(tmp_path / "taken")]) == 2
    assert "taken" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_run_learns_and_measures_what_it_says():
    """A run's test figures are those of its own scores, and training beats chance."""
    settings = DemoSettings(images=400, seeds=1, epochs=6, batch=32)
    data = demo.prepare(settings)
    one = demo.train("triplet-sn", 0, data, settings, lambda epoch: None)
    assert one.epochs == [2, 4, 6]
    assert one.train_loss[-1] < one.train_loss[0]
    assert one.similarity.shape == (60, 300)
    assert one.test["rsum"] == recalls(one.similarity, data.test.image_of_caption)["rsum"]
    taus = kendall(one.similarity, data.test.true)
    assert one.test["tau_true"] == (taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2
    shuffled = np.random.default_rng(0).permuted(one.similarity, axis=0)
    assert one.test["tau_true"] > kendall(shuffled, data.test.true)["i2t_tau_a"] + 0.03
    # Labels of the validation split: own captions are 1, whoever labels them.
    own = data.validation.image_of_caption[None, :] == np.arange(len(data.validation.pixels))[:, None]
    assert (data.validation.pseudo[own] == 1).all()
    assert (data.validation.true[own] == 1).all()


def test_summary_of_runs():
    def of(loss, rsum):
        test = {key: rsum for key, _, _ in FIGURES}
        return Run(loss, 0, [1], [0.1], [1.0], [0.2], test, 1.0, np.zeros((1, 1), np.float32))

    rows = summary([of("bcls", 1.0), of("triplet-hn", 4.0), of("bcls", 3.0)])
    assert list(rows) == ["triplet-hn", "bcls"]
    assert rows["bcls"]["rsum"] == Spread(2.0, pytest.approx(2**0.5))
    assert rows["triplet-hn"]["rsum"] == Spread(4.0, 0.0)


@pytest.mark.slow
def test_bcls_ranks_closest_to_the_truth(tmp_path):
    """The demo's claim, at its default size: over 3 seeds BCLS wins on tau against the true relevance, clearly."""
    assert cli.main(["demo", "--out", str(tmp_path)]) == 0
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    taus = {loss: [one["test"]["tau_true"] for one in runs if one["loss"] == loss] for loss in LOSSES}
    assert min(taus["bcls"]) > max(taus["triplet-sn"] + taus["triplet-hn"])
    mean = {loss: sum(values) / len(values) for loss, values in taus.items()}
    assert mean["bcls"] > 1.05 * max(mean["triplet-sn"], mean["triplet-hn"])
