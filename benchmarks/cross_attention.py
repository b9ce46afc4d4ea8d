"""Time and memory of a training step of SAF and SGR: ``python -m benchmarks.cross_attention --device cuda``.

A step is what the training loop does with a batch whose features are on the device: encoders, scores of all pairs, BCLS
loss, backward pass, clipping, optimizer; in bf16 on a GPU and in float32 on a CPU. Images have 36 regions of 2,560
numbers, captions the lengths of MS-COCO's test split, cut at 24 words. ``busy`` is the time of all kernels of a step,
``kernels`` their number: a step that takes much longer than it is busy waits for the host.

``--baseline FILE`` also measures another version of ``bcls/models/cross_attention.py``, such as the output of
``git show REVISION:src/bcls/models/cross_attention.py``; the two versions take turns. ``--graph`` also records steps of
three widths, as ``bcls train --graph`` does, and reports the memory that the recordings hold. ``--profile FOLDER``
writes the kernels that take longest.
"""

import argparse
import gc
import importlib.util
import statistics
import time
from pathlib import Path

import torch

import bcls.models.cross_attention
from bcls import losses
from bcls.losses.base import total
from bcls.models import build, sgraf
from bcls.models.layers import Padded
from bcls.training.cuda_graph import GraphedStep
from bcls.training.loader import IndexBatch
from benchmarks.cross import LENGTHS
from benchmarks.tables import show

WORDS, LONGEST = 8000, 24
#: Milliseconds of a step that the models must not exceed on an H200.
BARS = {("saf", 128): 10, ("sgr", 128): 15, ("saf", 256): 25, ("sgr", 256): 40}


def load(path):
    """Another version of the module."""
    spec = importlib.util.spec_from_file_location("baseline", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Step:
    """Model, data and optimizer; a call takes a step.

    Args:
        name: ``"saf"`` or ``"sgr"``.
        version: The module with the heads.
        batch: B.
        chosen: Arguments of the command.
    """

    def __init__(self, name, version, batch, chosen):
        self.version, self.device, self.batch = version, torch.device(chosen.device), batch
        torch.manual_seed(0)
        self.use_version()
        sizes = {"features": chosen.features, "width": chosen.width, "similarity_width": chosen.similarity_width}
        self.model = build({"name": name, "words": WORDS, "regions": 36, **sizes}).to(self.device).train()
        self.loss = losses.from_name("bcls")
        rate = torch.tensor(2e-4, device=self.device) if chosen.device == "cuda" else 2e-4
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, fused=chosen.device == "cuda")
        shares = torch.tensor(list(LENGTHS.values()), dtype=torch.float64)
        self.lengths = torch.tensor(list(LENGTHS))[torch.multinomial(shares, batch, replacement=True)]
        self.lengths = self.lengths.clamp(max=LONGEST)
        self.lengths[0] = LONGEST
        self.host_lengths, self.lengths = self.lengths.tolist(), self.lengths.to(self.device)
        self.tokens = torch.randint(WORDS, (batch, LONGEST), device=self.device)
        self.regions = torch.randn(batch, 36, chosen.features, device=self.device, dtype=torch.float16)
        self.relevance = torch.rand(batch, batch, device=self.device).fill_diagonal_(1)
        self.ids = torch.arange(batch, device=self.device)

    def use_version(self):
        """Let models use this version."""
        for name in ("FiltrationHead", "ReasoningHead", "SelfAttention", "image_side"):
            setattr(sgraf, name, getattr(self.version, name))

    def __call__(self, index=None):
        """Take a step, on the whole batch or on one that is given by indices."""
        self.use_version()
        rows = self.ids if index is None else index.captions
        width = LONGEST if index is None else index.width
        tokens = torch.nn.functional.pad(self.tokens, (0, max(0, width - LONGEST)))[:, :width]
        host_lengths = self.host_lengths if index is None else None
        texts = Padded(tokens[rows], self.lengths.clamp(max=width)[rows], host_lengths)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            scores = self.model.scores(*self.model(Padded(self.regions[rows].float()), texts))
        terms = self.loss.terms(scores.float(), self.relevance, image_ids=self.ids)
        total(terms).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return terms

    def timed(self, number):
        """Milliseconds a step, over several steps in a row."""
        self.wait()
        started = time.perf_counter()
        for _ in range(number):
            self()
        self.wait()
        return 1000 * (time.perf_counter() - started) / number

    def wait(self):
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak(self, others):
        """Gigabytes of model, optimizer and step, without the bytes of others; not measured on a CPU."""
        if self.device.type == "cpu":
            return None
        torch.cuda.reset_peak_memory_stats()
        self()
        self.wait()
        return (torch.cuda.max_memory_allocated() - others) / 2**30

    def profile(self, path):
        """Time of the kernels of a step in milliseconds, and their number."""
        if self.device.type == "cpu":
            return None, None
        activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as profiler:
            for _ in range(3):
                self()
            self.wait()
        events = [one for one in profiler.events() if one.device_type == torch.autograd.DeviceType.CUDA]
        kernels = [one for one in events if not one.is_user_annotation]
        if path is not None:
            averages = profiler.key_averages()
            tables = [
                averages.table(sort_by=key, row_limit=20) for key in ("self_cuda_time_total", "self_cpu_time_total")
            ]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(tables))
        return sum(one.time_range.elapsed_us() for one in kernels) / 3000, len(kernels) / 3


def empty():
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure(name, batch, versions, chosen):
    """Rows of the table."""
    rows, steps, peaks = [], {}, {}
    for label, version in versions.items():
        empty()
        others = torch.cuda.memory_allocated() if chosen.device == "cuda" else 0
        step = steps[label] = Step(name, version, batch, chosen)
        for _ in range(1 if chosen.device == "cpu" else 3):
            step()
        peaks[label] = step.peak(others)
    times = {label: [] for label in steps}
    for _ in range(chosen.rounds):
        for label, step in steps.items():
            times[label].append(step.timed(1 if chosen.device == "cpu" else 5))
    for label, step in steps.items():
        # Profiled last, so that the profiler cannot influence the timings.
        path = None if chosen.profile is None else chosen.profile / f"{name}-{batch}-{label}.txt"
        busy, number = step.profile(path)
        bar = BARS.get((name, batch))
        rows.append(row_of(f"{name}, B = {batch}, {label}", times[label], busy, number, peaks[label], bar))
    return rows


def row_of(step, times, busy, kernels, peak, bar):
    """A row of the table, as `docs/performance.md` reads it."""
    row = {"step": step, "value": statistics.median(times), "busy": busy, "kernels": kernels, "peak GB": peak}
    return {**row, "bar": bar, "side": "most"}


def recorded(name, batch, version, chosen):
    """A row: milliseconds of a recorded step of width 23, and gigabytes reserved after recordings of three widths."""
    empty()
    torch.cuda.reset_peak_memory_stats()
    step = Step(name, version, batch, chosen)
    graphed = GraphedStep(step, step.optimizer)
    batches = [IndexBatch(step.ids.clone(), width) for width in (15, 23, 31)]
    for one in batches * 6:
        graphed(one)
    step.wait()
    took = []
    for _ in range(chosen.rounds):
        started = time.perf_counter()
        for _ in range(5):
            graphed(batches[1])
        step.wait()
        took.append(1000 * (time.perf_counter() - started) / 5)
    return row_of(f"{name}, B = {batch}, recorded", took, None, None, torch.cuda.memory_reserved() / 2**30, None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", nargs="+", default=["saf", "sgr"])
    parser.add_argument("--batches", type=int, nargs="+", help="128, 256 and 512 on cuda, 32 on a CPU")
    parser.add_argument("--features", type=int, help="2,560 on cuda, 64 on a CPU")
    parser.add_argument("--width", type=int, help="1,024 on cuda, 128 on a CPU")
    parser.add_argument("--similarity-width", type=int, help="256 on cuda, 32 on a CPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--baseline", type=Path, help="another version of cross_attention.py")
    parser.add_argument("--graph", action="store_true", help="also with recorded steps")
    parser.add_argument("--profile", type=Path, help="folder for tables of kernels")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    chosen = parser.parse_args()
    small = chosen.device == "cpu"
    chosen.features = chosen.features or (64 if small else 2560)
    chosen.width = chosen.width or (128 if small else 1024)
    chosen.similarity_width = chosen.similarity_width or (32 if small else 256)
    versions = {"eager": bcls.models.cross_attention}
    if chosen.baseline is not None:
        versions["baseline"] = load(chosen.baseline)
    rows = []
    for batch in chosen.batches or ((32,) if small else (128, 256, 512)):
        for name in chosen.models:
            rows += measure(name, batch, versions, chosen)
            if chosen.graph and not small:
                rows.append(recorded(name, batch, versions["eager"], chosen))
    show(f"milliseconds of a training step of SAF and SGR, width {chosen.width}", rows, chosen.json, chosen.device)


if __name__ == "__main__":
    main()
