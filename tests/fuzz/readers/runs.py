"""Runs: the state and tensors of a checkpoint, and the metrics that the web app shows."""

import json
import tempfile
from functools import cache, partial
from pathlib import Path

import torch

from bcls.losses import TripletLoss
from bcls.training.checkpoint import Learner, Progress, read_state, restore, write_checkpoint
from bcls.training.metrics_log import read_metrics
from bcls.web.runs import read_run
from tests.fuzz.damage import damage_json, or_plain
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import put
from tests.fuzz.readers.models import damage_tensors
from tests.training.factories import TinyModel


def learner():
    model = TinyModel(2)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return Learner(model, TripletLoss(), optimizer)


@cache
def whole():
    with tempfile.TemporaryDirectory() as place:
        write_checkpoint(
            Path(place), learner(), Progress(1, 2, 3, pending=[(1, {"loss": 0.5})]), {"lr": 1}, {"images": 3}
        )
        return {path.name: path.read_bytes() for path in Path(place).iterdir()}


def read(name, content, folder):
    for other, kept in whole().items():
        put(folder / "last", other, kept)
    put(folder / "last", name, content)
    restore(folder / "last", learner(), read_state(folder / "last"))


LINES = b"".join(
    json.dumps({"kind": "validation", "epoch": n, "step": n, "rsum": 1.5 * n}).encode() + b"\n" for n in range(3)
)


def read_lines(content, folder):
    put(folder / "run", "metrics.jsonl", content)
    put(folder / "run", "config.yaml", b"model: {name: vsepp}\n")
    read_run("run", folder / "run")


def read_journal(content, folder):
    put(folder / "journal", "metrics.jsonl", content)
    read_metrics(folder / "journal")


def read_config(content, folder):
    put(folder / "run", "metrics.jsonl", LINES)
    put(folder / "run", "config.yaml", content)
    read_run("run", folder / "run")


READERS = (
    Reader("run state", lambda: [whole()["training.json"]], partial(read, "training.json"), damage_json),
    Reader(
        "run tensors",
        lambda: [whole()["training.safetensors"]],
        partial(read, "training.safetensors"),
        or_plain(damage_tensors),
    ),
    Reader("run figures", lambda: [LINES], read_lines, damage_json),
    Reader("run journal", lambda: [LINES], read_journal, damage_json),
    Reader("run settings", lambda: [b"model: {name: vsepp}\nloss: {name: bcls, alpha: 0.2}\nlr: 5e-4\n"], read_config),
)
