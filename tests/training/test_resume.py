"""A run that was stopped anywhere ends as one that was not, bit for bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bcls.training.train import train
from tests.training.factories import TinyModel, make_data, settings

ROOT = Path(__file__).parents[2]
FULL = {
    "loss": {"name": "infonce", "learn_temperature": True},
    "ema": 0.9,
    "accumulate": 2,
    "warm_negatives": 1,
    "warmup": 0.5,
    "epochs": 3,
    "weight_decay": 1e-3,
    "optimizer": "adamw",
}


class Stopping(TinyModel):
    """Sends its own process a signal at one of its batches."""

    def __init__(self, at=None, number=signal.SIGTERM):
        torch.manual_seed(0)
        super().__init__(dropout=0.2)
        self.at, self.number, self.seen = at, number, 0

    def forward(self, images, texts):
        self.seen += 1
        if self.seen == self.at:
            os.kill(os.getpid(), self.number)
        return super().forward(images, texts)


def contents(folder):
    found = {
        str(path.relative_to(folder)): path.read_bytes() for path in (folder / "checkpoints").rglob("*.safetensors")
    }
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return found, [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    data = make_data(folder / "data")
    result = train(settings(data, folder / "whole", **FULL), model=Stopping())
    assert result.epochs == 3
    return data, contents(folder / "whole")


# Seven batches make an epoch, two a step: (1 2) (3 4) (5 6) (7).
@pytest.mark.parametrize(
    ("at", "number", "done"),
    [(1, signal.SIGTERM, 1), (6, signal.SIGINT, 3), (7, signal.SIGINT, 4), (8, signal.SIGTERM, 5)],
)
def test_a_signal_writes_a_checkpoint_and_the_run_resumes(whole, tmp_path, at, number, done):
    data, expected = whole
    handler = signal.getsignal(signal.SIGINT)  # not always Python's: `nohup` starts processes that ignore SIGINT
    with pytest.raises(KeyboardInterrupt):
        train(settings(data, tmp_path / "run", **FULL), model=Stopping(at, number))
    state = json.loads((tmp_path / "run" / "checkpoints" / "last" / "training.json").read_text())
    assert state["progress"]["done"] == done
    assert signal.getsignal(signal.SIGINT) is handler
    path = tmp_path / "run" / "checkpoints" / "last" / "training.json"
    state["progress"]["seconds"] += 1000
    path.write_text(json.dumps(state))
    result = train(settings(data, tmp_path / "run", **FULL, resume=True), model=Stopping())
    assert 1000 < result.seconds < 2000
    assert contents(tmp_path / "run") == expected


def test_several_stops_and_other_intervals_change_nothing(whole, tmp_path):
    data, expected = whole
    for at in (3, 3, 5):
        again = (tmp_path / "run" / "config.yaml").exists()
        with pytest.raises(KeyboardInterrupt):
            train(settings(data, tmp_path / "run", **FULL, resume=again), model=Stopping(at))
    train(settings(data, tmp_path / "run", **{**FULL, "save_every": 1}, resume=True), model=Stopping())
    assert contents(tmp_path / "run") == expected


def test_resuming_a_finished_run_changes_nothing(whole, tmp_path):
    data, _ = whole
    first = train(settings(data, tmp_path / "run", epochs=1), model=TinyModel())
    before = contents(tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    again = train(settings(data, tmp_path / "run", epochs=1, resume=True), model=TinyModel())
    assert contents(tmp_path / "run") == before
    assert again.best == first.best
    assert (tmp_path / "run" / "report.html").exists()


def test_a_run_from_before_a_setting_was_added_resumes(whole, tmp_path):
    data, _ = whole
    train(settings(data, tmp_path / "run", epochs=1), model=TinyModel())
    path = tmp_path / "run" / "config.yaml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("micro_batch:")))
    assert path.read_text().count("\n") == len(lines) - 1
    assert train(settings(data, tmp_path / "run", epochs=2, resume=True), model=TinyModel()).epochs == 2


def test_kills_at_random_points():
    """The short form of ``python -m benchmarks.resume``."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "benchmarks.resume", "--kills", "4"]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    counts = json.loads(run.stdout)
    assert (counts["kills"], counts["different"]) == (4, 0)
    assert min(counts["after a step"], counts["while a checkpoint was replaced"]) >= 1


def test_changed_settings_are_reported_before_an_encoder_runs(tmp_path, monkeypatch):
    data = make_data(tmp_path / "data")
    train(settings(data, tmp_path / "run", epochs=1), model=TinyModel())

    def set_up(*arguments, **options):
        raise AssertionError("the settings are checked first")

    monkeypatch.setattr("bcls.training.train.set_up", set_up)
    with pytest.raises(ValueError, match=r"`resume`: expected .* the run, got lr: .* before, 0.5 now; .*config.yaml"):
        train(settings(data, tmp_path / "run", epochs=1, lr=0.5, resume=True), model=TinyModel())
