"""Training for a sweep, and requests to stop it."""

import signal

import pytest

from bcls.experiments import SweepSettings, run_sweep
from bcls.training import train as loop
from tests.experiments.made import data, write


def test_a_stop_during_the_last_validation_is_a_stop(tmp_path, monkeypatch):
    data(tmp_path / "data")
    file = write(tmp_path / "a.yaml", settings={"epochs": 1}, seeds=2)
    settings = SweepSettings(data=str(tmp_path / "data"), out=str(tmp_path / "out"), device="cpu")
    look = loop.validate

    def asked(*arguments, **more):
        signal.raise_signal(signal.SIGINT)
        return look(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", asked)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(file, settings)
    assert len(list((tmp_path / "out").glob("runs/*/metrics.jsonl"))) == 1  # the second run was not begun
    assert run_sweep(file, settings).finished == 2
