"""What BCLS adds to a training step of VSE++: ``python -m benchmarks.training --device cuda``.

One process holds a run for each loss, with the same model, data and batch. The runs take turns, step by step, so that
load from other processes affects all of them, and the median is reported. A step is everything that the loop does:
batch, labels, scores, loss, backward pass, clipping, optimizer. The data is synthetic: features of 2,048 numbers,
captions of 8 to 16 words.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bcls.training.batch_labels import BatchLabels
from bcls.training.config import TrainConfig
from bcls.training.optimization import make_loss
from bcls.training.setup import set_up
from bcls.training.train import seed_step, train_step
from benchmarks.tables import show

LOSSES = ("triplet-hn", "triplet-sn", "bcls")


def make_data(folder, images, words=8000):
    """A dataset folder with features named ``made``."""
    draw = np.random.default_rng(0)
    known = [f"word{number}" for number in range(words)]
    lines = []
    for image, split in [*((one, "train") for one in range(images)), *((images + one, "val") for one in range(4))]:
        for turn in range(5):
            text = " ".join(known[number] for number in draw.integers(0, words, draw.integers(8, 17)))
            row = {"image_id": f"i{image}", "caption_id": f"i{image}#{turn}", "text": text, "split": split}
            lines.append(json.dumps(row) + "\n")
    (folder / "captions.jsonl").write_text("".join(lines))
    files = {}
    for split, count in (("train", images), ("val", 4)):
        np.save(folder / f"{split}.npy", draw.standard_normal((count, 2048)).astype(np.float16))
        files[split] = {"path": f"{split}.npy"}
    manifest = {"format": "bcls-dataset", "version": 1, "name": "made", "features": {"made": files}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def make_run(folder, loss, arguments):
    config = TrainConfig(
        data=str(folder),
        features="made",
        labels="none",
        loss={"name": "triplet-hn", "reduction": "sum"},
        model={"name": "vsepp"},
        word_threshold=1,
        batch=arguments.batch,
        val_split=None,
        device=arguments.device,
        precision=arguments.precision,
    )
    run = set_up(config)
    criterion = make_loss({"name": loss, "reduction": "sum"}).to(run.accelerator.device)
    vectors = np.random.default_rng(1).standard_normal((len(run.train.captions), 384)).astype(np.float16)
    labels = BatchLabels(vectors, run.train.image_of_caption, "max", run.accelerator.device)
    return replace(run, loader=replace(run.loader, labels=labels if loss == "bcls" else None)), criterion


def steps_of(run, criterion):
    """One step of the loop at a time, endlessly."""
    for epoch in itertools.count():
        plan = [batch for step in run.plan(epoch) for batch in step]
        for number, batch in enumerate(run.loader.batches(plan, epoch)):
            seed_step(1, epoch, number, 0)
            yield train_step(run, criterion, [batch])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    wait = torch.cuda.synchronize if arguments.device == "cuda" else lambda: None
    with tempfile.TemporaryDirectory() as place:
        make_data(Path(place), arguments.images)
        going = {loss: steps_of(*make_run(Path(place), loss, arguments)) for loss in LOSSES}
        times = {loss: [] for loss in LOSSES}
        for number in range(arguments.steps + 10):
            for loss, steps in going.items():
                wait()
                started = time.perf_counter()
                next(steps)
                wait()
                if number >= 10:  # the first ones load kernels
                    times[loss].append(time.perf_counter() - started)
    took = {loss: statistics.median(values) for loss, values in times.items()}
    rows = [{"loss": loss, "ms": 1e3 * one, "ratio": one / took["triplet-hn"]} for loss, one in took.items()]
    precision = "float32" if arguments.precision == "no" else arguments.precision
    show(f"VSE++, B={arguments.batch}, {precision}", rows, arguments.json, arguments.device)


if __name__ == "__main__":
    main()
