"""One run, from its weights to its result."""

import shutil
from dataclasses import replace

import pytest

from bcls.experiments import SweepSettings, one_run, read_results, run_sweep
from tests.experiments.made import data, write


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
