"""Kill a training run at random points, resume it, and compare: ``python -m benchmarks.resume --kills 100``.

Every attempt is a separate process that ends itself with SIGKILL at a random point of its progress, not of time: after
an optimizer step, or before a disk operation (open, fsync, rename, remove) of the replacement of a checkpoint. The run
is resumed until it is complete. Then weights, optimizer, metrics and the best checkpoint are compared, bit for bit,
with those of an uninterrupted run. Further runs follow until there were enough kills. At least 80 % of the kills must
leave a checkpoint to resume from.
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
from dataclasses import replace
from pathlib import Path

import torch

from bcls._core.files import beside, write_whole
from bcls.training.config import TrainConfig
from bcls.training.train import train
from tests.training.factories import make_data

#: Keys of metrics.jsonl that are times.
CLOCKS = {"seconds"}
#: Points at which a run can be killed.
STEP, DISK = 0, 1
#: Audit events of operations that change the disk.
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


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


def count_points(counts, kill):
    """Count the points of this process in ``counts``; at ``kill``, a kind and a number, end it with SIGKILL."""
    module = importlib.import_module("bcls.training.train")
    train_step, replace_folder, fsync = module.train_step, module.replace_folder, os.fsync
    replacing = False

    def reach(kind):
        counts[kind] += 1
        if kill == (kind, counts[kind]):
            os.kill(os.getpid(), signal.SIGKILL)

    def step(*arguments):
        values = train_step(*arguments)
        reach(STEP)
        return values

    def replacement(*arguments):
        nonlocal replacing
        replacing = True
        replace_folder(*arguments)
        replacing = False

    def watch(event, arguments):
        if replacing and (event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))):
            reach(DISK)

    def sync(handle):
        if replacing:
            reach(DISK)
        fsync(handle)

    module.train_step, module.replace_folder, os.fsync = step, replacement, sync
    sys.addaudithook(watch)


def attempt(config, counts, kill):
    """Train without output."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
        count_points(counts, kill)
        train(config)


def run(config, kill=None):
    """Train in another process; returns whether it completed, and the points that it reached."""
    fork = multiprocessing.get_context("fork")
    counts = fork.RawArray("i", 2)
    child = fork.Process(target=attempt, args=(config, counts, kill))
    child.start()
    child.join()
    if child.exitcode not in {0, -signal.SIGKILL}:
        raise SystemExit(f"a run ended with {child.exitcode}: see {config.out}")
    return child.exitcode == 0, list(counts)


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
    _, points = run(settings(data, home / "whole"))
    expected = contents(home / "whole")
    killed, resumed, runs, different = [0, 0], 0, 0, 0
    while sum(killed) < arguments.kills:
        config = settings(data, home / f"run{runs}")
        last = Path(config.out) / "checkpoints" / "last"
        done = False
        while not done:
            begun = (Path(config.out) / "config.yaml").exists()
            kind = (STEP, DISK)[sum(killed) % 2]
            # Within a quarter of a run, so that a run is killed several times; nowhere after enough kills.
            kill = (kind, draw.randint(1, points[kind] // 4)) if sum(killed) < arguments.kills else None
            done, _ = run(replace(config, resume=begun), kill)
            if not done:
                killed[kind] += 1
                resumed += last.exists() or beside(last)[1].exists()
        different += contents(Path(config.out)) != expected
        shutil.rmtree(config.out)
        runs += 1
        print(f"{sum(killed)} kills, {runs} runs ended, {different} differ", file=sys.stderr, flush=True)
    shutil.rmtree(home)
    counts = {
        "kills": sum(killed),
        "after a step": killed[STEP],
        "while a checkpoint was replaced": killed[DISK],
        "resumed from a checkpoint": resumed,
        "runs": runs,
        "different": different,
    }
    print(json.dumps(counts))
    if arguments.json:
        write_whole(arguments.json, json.dumps(counts, indent=1) + "\n")
    return 1 if different or resumed < 0.8 * sum(killed) else 0


if __name__ == "__main__":
    sys.exit(main())
