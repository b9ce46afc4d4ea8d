"""One run, from its weights to its result."""

import shutil
from dataclasses import replace

import pytest

from bcls.experiments import SweepSettings, read_results, run_sweep
from bcls.experiments import run as one_run
from bcls.experiments.plan import plan_runs
from bcls.experiments.results import run_folder, write_result
from bcls.experiments.sweep import _members_are_finished
from bcls.experiments.sweep_file import read_sweep
from bcls.training import train as loop
from tests.experiments.made import data, write
from tests.stops import stops_at


@pytest.fixture
def settings(tmp_path):
    data(tmp_path / "data")
    return SweepSettings(data=str(tmp_path / "data"), out=str(tmp_path / "out"), device="cpu")


def test_the_last_checkpoint_stays_until_the_result_is_written(tmp_path, settings, monkeypatch):
    file = write(tmp_path / "a.yaml", settings={"epochs": 1})

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(one_run, "write_result", killed)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(file, settings)
    (last,) = (tmp_path / "out").glob("runs/*/checkpoints/last")
    journal = (last.parents[1] / "metrics.jsonl").read_bytes()
    assert run_sweep(file, settings).finished == 1
    assert not last.exists()
    assert (last.parents[1] / "metrics.jsonl").read_bytes() == journal  # nothing was trained again


def test_a_run_without_its_weights_is_trained_again_to_be_tested(tmp_path, settings):
    file = write(tmp_path / "a.yaml", settings={"epochs": 1})
    run_sweep(file, settings)
    (before,) = read_results(tmp_path / "out")[1]
    shutil.rmtree(tmp_path / "out" / "runs" / before["key"] / "checkpoints")
    run_sweep(file, settings)  # there is nothing to do
    assert not list((tmp_path / "out").glob("runs/*/checkpoints"))
    run_sweep(file, replace(settings, final=True))
    (after,) = read_results(tmp_path / "out")[1]
    assert after["validation"] == before["validation"]
    assert "rsum" in after["test"]


def test_a_second_training_that_was_stopped_goes_on_and_is_not_tested_halfway(tmp_path, settings, monkeypatch):
    file = write(tmp_path / "a.yaml", settings={"epochs": 3, "lr": 1e-2})
    run_sweep(file, replace(settings, out=str(tmp_path / "whole"), final=True))
    (whole,) = read_results(tmp_path / "whole")[1]
    run_sweep(file, settings)
    (before,) = read_results(tmp_path / "out")[1]
    checkpoints = tmp_path / "out" / "runs" / before["key"] / "checkpoints"
    shutil.rmtree(checkpoints)
    final = replace(settings, final=True)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", stops_at(2, loop.validate))
        patch.setattr(one_run, "SAVE_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(file, final)
    assert (checkpoints / "best").is_dir()
    (stopped,) = read_results(tmp_path / "out")[1]
    assert stopped["validation"] == before["validation"]
    run_sweep(file, final)
    (after,) = read_results(tmp_path / "out")[1]
    assert after["validation"] == before["validation"]
    assert after["test"] == whole["test"]
    assert "again" not in after


def test_an_ensemble_waits_for_a_member_that_is_trained_again(tmp_path):
    rows = {"a": {}, "b": {"loss": {"name": "triplet-hn"}}, "both": {"ensemble": ["a", "b"]}}
    planned = plan_runs(read_sweep(write(tmp_path / "a.yaml", runs=rows)))
    first, second, both = planned
    for run, result in ((first, {}), (second, {"again": True})):
        run_folder(tmp_path, run).mkdir(parents=True)
        write_result(tmp_path, run, {"validation": {"rsum": 1.0}, **result})
    assert not _members_are_finished(tmp_path, both)
    write_result(tmp_path, second, {"validation": {"rsum": 1.0}})
    assert _members_are_finished(tmp_path, both)
