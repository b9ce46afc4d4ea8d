"""Speed and memory of the losses on this machine's CPU, as ratios measured in one run: ``python -m benchmarks.losses``.

Times are medians in milliseconds, see :func:`bcls.experiments.bench.medians`; labels are distributed as those of MiniLM
on photo captions.
"""

import argparse
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch

from bcls.experiments.bench import matrices, medians, step
from bcls.losses import BCLSLoss, KendallLoss, KendallWindowLoss, TripletHardLoss, TripletSoftLoss, from_name
from bcls.losses._torch import pairs
from benchmarks.memory import peak_megabytes
from benchmarks.tables import show_ratios
from tests.reference.window_loop import loop_over_windows

CPU = torch.device("cpu")


def prepared(loss, size):
    """For the memory of one step, see :func:`benchmarks.memory.peak_megabytes`."""
    one_step(loss, *matrices(8, CPU))()  # the first call loads parts of torch
    return one_step(loss, *matrices(size, CPU))


def one_step(loss, similarity, relevance):
    """A function that runs forward and backward pass."""
    return partial(step, loss, (similarity,), relevance)


def prepared_dense(ranks_from, size):
    pairs.RANKS_FROM["cpu"] = ranks_from
    return prepared(KendallLoss(), size)


def compare_windows(rows):
    for size, repeats, bar in ((512, 5, 6.0), (1024, 3, 8.0)):
        similarity, relevance = matrices(size, CPU)
        took = medians(
            {
                "bins": one_step(KendallWindowLoss(), similarity, relevance),
                "loop": one_step(loop_over_windows, similarity, relevance),
            },
            CPU,
            repeats,
        )
        ratio = took["loop"] / took["bins"]
        rows.append(
            (f"window loss, B={size}: loop over windows / ours", took["loop"], took["bins"], ratio, f">= {bar:g}")
        )


def compare_strides(rows):
    for size in (512, 1024):
        similarity, relevance = matrices(size, CPU)
        for beta, repeats, bar in ((0.01, 21, "<= 1.3"), (0, 3, "")):
            rivals = {b: one_step(KendallWindowLoss(beta=b), similarity, relevance) for b in (0.1, beta)}
            took = medians(rivals, CPU, repeats)
            ratio = took[beta] / took[0.1]
            rows.append((f"window loss, B={size}: beta {beta} / 0.1", took[beta], took[0.1], ratio, bar))


def compare_objectives(rows):
    for size in (128, 512, 1024):
        similarity, relevance = matrices(size, CPU)
        losses = {"bcls": BCLSLoss(), "window": KendallWindowLoss()}
        losses |= {"hard": TripletHardLoss(), "soft": TripletSoftLoss()}
        took = medians({name: one_step(loss, similarity, relevance) for name, loss in losses.items()}, CPU, 11)
        for rival in ("hard", "soft"):
            ratio = took["bcls"] / took[rival]
            rows.append((f"BCLS, B={size}: whole / Triplet {rival} negatives", took["bcls"], took[rival], ratio, ""))
        window, ratio = took["window"], took["window"] / took["hard"]
        bar = "<= 3" if size == 1024 else ""
        rows.append((f"window loss, B={size}: whole / Triplet hard negatives", window, took["hard"], ratio, bar))


def compare_dense(rows):
    for size, repeats in ((32, 5), (64, 5), (128, 3), (256, 3), (512, 1)):
        similarity, relevance = matrices(size, CPU)
        rivals = {}
        for name, ranks_from in (("ranks", 1), ("blocks", 10**9)):

            def run(ranks_from=ranks_from, similarity=similarity, relevance=relevance):
                pairs.RANKS_FROM["cpu"] = ranks_from
                one_step(KendallLoss(), similarity, relevance)()

            rivals[name] = run
        default = pairs.RANKS_FROM["cpu"]
        took = medians(rivals, CPU, repeats)
        pairs.RANKS_FROM["cpu"] = default
        ratio = took["blocks"] / took["ranks"]
        chosen = "ranks used" if size >= default else "blocks used"
        rows.append((f"dense Kendall, B={size}: blocks / ranks", took["blocks"], took["ranks"], ratio, chosen))


def compare_graded(rows):
    """The losses with graded labels against InfoNCE."""
    for size, repeats, names, bar in (
        (1024, 11, ("csa", "xclr", "cwcl"), "<= 3"),
        (1024, 11, ("smooth-ap", "recall"), "two ranks of each positive"),
        (1024, 5, ("listmle", "rnc"), "sorts each row"),
        (256, 3, ("sndcg", "lambda"), "compares all pairs"),
    ):
        similarity, relevance = matrices(size, CPU)
        rivals = {name: one_step(from_name(name), similarity, relevance) for name in ("infonce", *names)}
        took = medians(rivals, CPU, repeats)
        for name in names:
            ratio = took[name] / took["infonce"]
            rows.append((f"{name}, B={size}: whole / InfoNCE", took[name], took["infonce"], ratio, bar))


def compare_memory(rows):
    ours = peak_megabytes(prepared, KendallWindowLoss(), 1024)
    loop = peak_megabytes(prepared, loop_over_windows, 1024)
    rows.append(("window loss, B=1024: peak MB, loop / ours", loop, ours, loop / ours, ">= 3"))
    for name, ranks_from in (("ranks", 1), ("blocks", 10**9)):
        dense = peak_megabytes(prepared_dense, ranks_from, 512)
        rows.append((f"dense Kendall, B=512, {name}: peak MB / 1024", dense, 1024, dense / 1024, "<= 1"))


def time_help(rows):
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "bcls", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    rows.append(("bcls --help: seconds / 0.5", statistics.median(times), 0.5, statistics.median(times) / 0.5, "<= 1"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--parts", nargs="*", help="only these, such as graded")
    arguments = parser.parse_args()
    rows = []
    parts = [
        compare_windows,
        compare_strides,
        compare_objectives,
        compare_dense,
        compare_graded,
        compare_memory,
        time_help,
    ]
    for part in [part for part in parts if not arguments.parts or part.__name__.partition("_")[2] in arguments.parts]:
        print(f"{part.__name__.replace('_', ' ')} ...", file=sys.stderr, flush=True)
        part(rows)
    show_ratios(rows, arguments.json)


if __name__ == "__main__":
    main()
