"""Micro batches, checkpointing and streaming: ``python -m benchmarks.micro_batches --device cuda``.

Trains a dual encoder with a tuned MiniLM (the packaged one, or random weights of the same sizes if it is missing) on
generated image features and token ids. A step is that of the training loop, labels aside: encoders, scores, BCLS,
backward pass, clipping, optimizer. Prints

- time and peak memory of a step with the whole batch, with micro batches and with checkpointing, in float32 and bf16;
  on a GPU the step with micro batches may allocate 8 GB and no more;
- the largest difference between the gradients with and without micro batches, relative to the largest gradient, in
  float32 and without dropout;
- a step of 65,536 pairs with the streaming loss, of heads on vectors and of the tuned MiniLM with micro batches.

``--batch 64 --micro 16 --large 256`` takes minutes on a CPU.
"""

import argparse
import json
import statistics
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch

from bcls._core.extras import MissingExtraError, minilm_folder
from bcls.losses import BCLSLoss, InfoNCELoss, StreamingBCLSLoss
from bcls.models.layers import Padded
from bcls.training.batch_labels import BatchLabels
from bcls.training.config import TrainConfig
from bcls.training.gradients import accumulate_gradients
from bcls.training.loader import Batch
from bcls.training.setup import set_up
from bcls.training.train import seed_step, train_step
from benchmarks.tables import show

FEATURES, LABELS, WORDS = 1280, 384, 24
GIGABYTE = 1 << 30
#: Bars: memory in GB, time relative to the whole batch, gradient difference.
MEMORY, TIME, GRADIENT = 8.0, 1.5, 1e-5


def make_minilm(folder):
    """A folder with random weights of MiniLM's sizes, and a tokenizer of a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=30522, max_position_embeddings=512, **sizes)).save_pretrained(folder)
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    inner = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2}, unk_token=marks["unk_token"]))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=512, **marks).save_pretrained(folder)
    return folder


def make_data(folder):
    """A dataset of a few images, which the set-up of a run needs; the batches are generated."""
    folder.mkdir()
    lines = [{"image_id": f"i{n}", "caption_id": f"i{n}", "text": "a", "split": "train"} for n in range(4)]
    (folder / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.save(folder / "train.npy", np.zeros((4, FEATURES), np.float32))
    features = {"made": {"train": {"path": "train.npy"}}}
    manifest = {"format": "bcls-dataset", "version": 1, "name": "made", "features": features}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


class Bench:
    """Makes runs and batches on a device."""

    def __init__(self, place, device):
        try:
            self.text = "minilm" if minilm_folder() else ""
        except (MissingExtraError, ValueError):
            self.text = str(make_minilm(place / "minilm"))
        self.data, self.device = make_data(place / "data"), torch.device(device)

    def run(self, *, micro=0, precision="no", checkpointing=False, tune=True):
        """A run that is set up."""
        model = {"name": "dual", "image": "features", "text": self.text, "tune_text": tune, "width": 512}
        torch.manual_seed(0)
        state = set_up(
            TrainConfig(
                data=str(self.data),
                features="made",
                labels="none",
                loss={"name": "triplet-sn"},
                model={**model, "checkpointing": checkpointing},
                micro_batch=micro,
                precision=precision,
                val_split=None,
                batch=4,
                device=str(self.device),
            )
        )
        state.parallel.train()
        return state

    def batch(self, pairs, *, streaming=False, vectors=False):
        """Random inputs; labels are those of random embeddings."""
        draw = torch.Generator().manual_seed(0)
        images = Padded(torch.randn(pairs, FEATURES, generator=draw))
        ids = torch.randint(1000, 30000, (pairs, WORDS), generator=draw)
        texts = Padded(ids, torch.randint(8, WORDS + 1, (pairs,), generator=draw))
        if vectors:
            texts = Padded(torch.randn(pairs, 384, generator=draw))
        labels = BatchLabels(torch.randn(pairs, LABELS, generator=draw).numpy(), np.arange(pairs), "max", self.device)
        rows = torch.arange(pairs)
        made = {"label_inputs": labels.streaming_inputs(rows)} if streaming else {"relevance": labels(rows)}
        images, texts = images.to(self.device), texts.to(self.device)
        return Batch(pairs, images, texts, rows.to(self.device), **{"relevance": None, **made})

    def measure(self, state, loss, batch, steps=3):
        """Median seconds of a step, and the peak of the allocated memory in GB (NaN on a CPU)."""
        cuda, times = self.device.type == "cuda", []
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        for number in range(steps + 1):
            seed_step(1, 0, number, 0)
            self._wait()
            started = time.perf_counter()
            train_step(state, loss, [batch])
            self._wait()
            times.append(time.perf_counter() - started)
        peak = torch.cuda.max_memory_allocated() / GIGABYTE if cuda else float("nan")
        return statistics.median(times[1:]), peak

    def _wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@contextmanager
def limited(device):
    """At most 8 GB of GPU memory."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(MEMORY * GIGABYTE / torch.cuda.get_device_properties(0).total_memory)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def rows_of_steps(bench, pairs, micro):
    """Time and memory of steps of the tuned encoder; with micro batches inside the memory limit."""
    cases = (("whole batch", {}), (f"micro batches of {micro}", {"micro": micro}))
    cases += (("checkpointing", {"checkpointing": True}),)
    for precision in ("no", "bf16"):
        batch, times = bench.batch(pairs), []
        for name, options in cases:
            with limited(bench.device) if "micro" in options else nullcontext():
                state = bench.run(precision=precision, **options)
                seconds, peak = bench.measure(state, BCLSLoss(), batch)
                state.close()
                del state
            times.append(seconds)
            bars = (MEMORY, TIME) if "micro" in options else (None, None)
            what = f"tuned MiniLM, B={pairs}, {'float32' if precision == 'no' else precision}, {name}"
            yield f"{what}: ms", 1e3 * seconds, None
            yield f"{what}: time / whole batch", seconds / times[0], bars[1]
            yield f"{what}: peak GB", peak, bars[0]


def rows_of_gradients(bench, pairs, micro):
    """Differences of gradients in float32, relative to the largest one."""
    batch = bench.batch(pairs)
    for loss in (InfoNCELoss(), BCLSLoss()):
        found = []
        for size in (0, micro):
            state = bench.run(micro=size)
            state.parallel.eval()  # no dropout: micro batches draw other masks than the whole batch
            accumulate_gradients(state, loss, [batch])
            found.append([one.grad for one in state.model.parameters() if one.grad is not None])
            state.close()
            del state
        largest = max(float(one.abs().max()) for one in found[0])
        gap = max(float((one - other).abs().max()) for one, other in zip(*found, strict=True)) / largest
        yield f"gradients, B={pairs}, float32, {type(loss).__name__}: relative difference", gap, GRADIENT


def rows_of_streaming(bench, pairs, micro):
    """A step of a very large batch."""
    for name, tune in (("heads on vectors", False), ("tuned MiniLM", True)):
        state = bench.run(micro=micro, precision="bf16", tune=tune)
        batch = bench.batch(pairs, streaming=True, vectors=not tune)
        seconds, peak = bench.measure(state, StreamingBCLSLoss(), batch, steps=1)
        state.close()
        del state
        yield f"streaming, {name}, B={pairs}, bf16, micro {micro}: ms", 1e3 * seconds, None
        yield f"streaming, {name}, B={pairs}: peak GB", peak, None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--micro", type=int, default=512)
    parser.add_argument("--large", type=int, default=65536, help="pairs of the streaming step")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(place), arguments.device)
        for part, pairs in (
            (rows_of_gradients, arguments.batch),
            (rows_of_steps, arguments.batch),
            (rows_of_streaming, arguments.large),
        ):
            for what, value, bar in part(bench, pairs, arguments.micro):
                if value == value:  # memory is measured on a GPU only
                    rows.append({"what": what, "value": value, "bar": bar, "side": "most"})
                    print(what, f"{value:.4g}", "" if bar is None else f"at most {bar:g}", flush=True)
    show("Micro batches, checkpointing and streaming", rows, arguments.json, arguments.device)


if __name__ == "__main__":
    main()
