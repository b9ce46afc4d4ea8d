"""Kill a training run at random times, resume it, and compare: ``python -m benchmarks.resume --kills 100``.

Every attempt is a separate process that is ended with SIGKILL after a random time: while it reads, trains, validates or
replaces a checkpoint. The run is resumed until it is complete. Then weights, optimizer, metrics and the best checkpoint
are compared, bit for bit, with those of an uninterrupted run. Further runs follow until there were enough kills.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from bcls._core.files import write_whole
from bcls.training.config import TrainConfig
from bcls.training.train import train
from tests.training.factories import make_data

#: Keys of metrics.jsonl that are times.
CLOCKS = {"seconds"}


def settings(data, out):
    return TrainConfig(
        data=str(data),
        out=str(out),
        features="made",
        labels="none",
        model={"name": "vsepp", "width": 16, "word_width": 8, "dropout_words": 0.2, "dropout_features": 0.2},
        loss={"name": "infonce+triplet-sn", "learn_temperature": True},
        word_threshold=1,
        epochs=4,
        batch=16,
        lr=1e-2,
        drops=[2],
        warmup=0.5,
        ema=0.9,
        accumulate=2,
        warm_negatives=1,
        log_every=3,
        save_every=2,
        device="cpu",
    )


def attempt(config):
    """Train without output."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
        train(config)


def run(config, seconds=None):
    """Train in another process, which is killed after ``seconds``; returns whether it completed."""
    child = multiprocessing.get_context("fork").Process(target=attempt, args=(config,))
    child.start()
    child.join(seconds)
    if child.exitcode is None:
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        return False
    if child.exitcode != 0:
        raise SystemExit(f"a run ended with {child.exitcode}: see {config.out}")
    return True


def contents(folder):
    """Everything that must not depend on the kills: tensors as bytes, states and metrics without times."""
    found = {}
    for path in sorted((folder / "checkpoints").rglob("*")):
        if path.suffix == ".safetensors":
            found[str(path.relative_to(folder))] = path.read_bytes()
    state = json.loads((folder / "checkpoints" / "last" / "training.json").read_text())["progress"]
    found["progress"] = {key: value for key, value in state.items() if key not in {"seconds", "metrics_bytes"}}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = [{key: value for key, value in line.items() if key not in CLOCKS} for line in lines]
    found["folders"] = sorted(path.name for path in (folder / "checkpoints").iterdir())
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the counts to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a forked process has no other threads
    if importlib.util.find_spec("tensorboard"):
        importlib.import_module("torch.utils.tensorboard")
    importlib.import_module("matplotlib.figure")
    draw = random.Random(arguments.seed)
    home = Path(tempfile.mkdtemp(prefix="bcls-resume-"))
    data = make_data(home / "data", images=64, each=4)
    whole = settings(data, home / "whole")
    started = time.monotonic()
    run(whole)
    took = time.monotonic() - started
    expected = contents(home / "whole")
    kills = runs = different = resumed = 0
    while kills < arguments.kills:
        config = settings(data, home / f"run{runs}")
        done = False
        while not done:
            begun = (Path(config.out) / "config.yaml").exists()
            resumed += any((Path(config.out) / "checkpoints" / name).exists() for name in ("last", "last.old"))
            # At most half a run, so that a run is killed several times; without limit after enough kills.
            limit = draw.uniform(0.0, took / 2) if kills < arguments.kills else None
            done = run(replace(config, resume=begun), limit)
            kills += not done
        different += contents(Path(config.out)) != expected
        shutil.rmtree(config.out)
        runs += 1
        print(f"{kills} kills, {runs} runs ended, {different} differ", file=sys.stderr, flush=True)
    shutil.rmtree(home)
    counts = {"kills": kills, "resumed from a checkpoint": resumed, "runs": runs, "different": different}
    print(json.dumps(counts))
    if arguments.json:
        write_whole(arguments.json, json.dumps(counts) + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
