"""Speed and memory of the fused losses on an NVIDIA GPU: ``python -m benchmarks.kernels --json kernels.json``.

Forward and backward pass, both directions, eager. The implementations take turns in one run, each after a step that is
not measured; the result is the median of CUDA events. Memory is the peak above the inputs and the gradient. Labels are
distributed as those of MiniLM on photo captions (mean 0.13, standard deviation 0.11).

``--quick`` measures only the values with a target, ``--profile`` shows device time by kernel, number of launches and
host time.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from bcls.experiments import bench
from bcls.experiments.bench import step
from bcls.losses import BCLSLoss, KendallLoss, KendallWindowLoss, StreamingBCLSLoss, TripletHardLoss
from benchmarks.tables import difference, keep

DEVICE = torch.device("cuda", 0)
SIZES = (128, 1024, 4096, 8192, 16384)
QUICK_SIZES = (128, 1024, 4096, 16384)
#: Milliseconds of K-SW-HS, and megabytes above inputs and gradient of the whole loss.
TIME_BAR = {128: 0.5, 1024: 0.5, 4096: 1.2, 16384: 12.0}
MEMORY_BAR = {size: factor * size**2 * 4 / 1e6 for size, factor in ((1024, 3), (4096, 3), (16384, 2))} | {128: 2.0}
#: The window loop keeps its graph for 18 windows: above this size it does not fit into memory.
LOOP_UP_TO = 8192
#: The implementations with a target.
BARRED = ("fused K-SW-HS", "fused K-SW-HS, beta 0.01", "plain Triplet-HN", "fused BCLS", "window loop")

matrices = partial(bench.matrices, device=DEVICE)
medians = partial(bench.medians, device=DEVICE)


def megabytes(run, kept):
    return bench.megabytes(run, DEVICE, kept)


def rivals_of(size, similarity, relevance, *, quick=False):
    """Steps by name."""
    target, source = torch.empty_like(similarity), similarity.detach()
    steps = {
        "plain K-SW-HS": partial(step, bench.plain(KendallWindowLoss()), (similarity,), relevance),
        "fused K-SW-HS": partial(step, KendallWindowLoss(), (similarity,), relevance),
        "fused K-SW-HS, beta 0.01": partial(step, KendallWindowLoss(beta=0.01), (similarity,), relevance),
        "plain Triplet-HN": partial(step, bench.hard_triplets, (similarity,)),
        "TripletHardLoss": partial(step, TripletHardLoss(), (similarity,), relevance),
        "plain BCLS": partial(step, bench.plain(BCLSLoss()), (similarity,), relevance),
        "fused BCLS": partial(step, BCLSLoss(), (similarity,), relevance),
        "InfoNCE": partial(step, bench.infonce, (similarity,)),
        "copy": partial(target.copy_, source),
    }
    if size <= LOOP_UP_TO:
        steps["window loop"] = partial(step, bench.window_loop, (similarity,), relevance)
    return {name: run for name, run in steps.items() if not quick or name in BARRED}


def time_losses(rows, sizes, *, quick=False):
    for size in sizes:
        similarity, relevance = matrices(size)
        steps = rivals_of(size, similarity, relevance, quick=quick)
        took = medians(steps, repeats=30 if size <= 1024 else 10 if size <= 4096 else 3)
        for name, value in took.items():
            bar = TIME_BAR.get(size) if name == "fused K-SW-HS" else None
            rows.append((f"B={size}: {name}, ms", value, bar, "most"))
        fused, hard = took["fused K-SW-HS"], took["plain Triplet-HN"]
        rows.append((f"B={size}: BCLS / Triplet-HN", took["fused BCLS"] / hard, 1.5 if size == 16384 else 2.0, "most"))
        rows.append((f"B={size}: beta 0.01 / 0.1", took["fused K-SW-HS, beta 0.01"] / fused, 1.5, "most"))
        if "window loop" in took:
            rows.append((f"B={size}: window loop / fused", took["window loop"] / fused, 30.0, "least"))
        steps.pop("copy", None)  # and its memory
        for name in ("fused K-SW-HS", "fused BCLS", *(() if quick else ("plain K-SW-HS", "plain Triplet-HN"))):
            bar = MEMORY_BAR.get(size) if name.startswith("fused") else None
            rows.append((f"B={size}: {name}, MB", megabytes(steps[name], 4 * size**2), bar, "most"))


def device_work(run, repeats=5):
    """Microseconds on the device and launches of one run, by kernel."""
    run(), run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    work = defaultdict(lambda: (0.0, 0.0))
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            took, launches = work[event.name]
            work[event.name] = took + event.time_range.elapsed_us() / repeats, launches + 1 / repeats
    return dict(sorted(work.items(), key=lambda item: -item[1][0]))


def host_milliseconds(run, repeats=30):
    """Median time until a call returns, not until the device has finished."""
    run(), run()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def show_profile(rows, sizes):
    for size in sizes:
        similarity, relevance = matrices(size)
        for name, loss, others in (
            ("fused K-SW-HS", KendallWindowLoss(), (relevance,)),
            ("fused BCLS", BCLSLoss(), (relevance,)),
            ("plain Triplet-HN", bench.hard_triplets, ()),
        ):
            forward, both = partial(loss, similarity, *others), partial(step, loss, (similarity,), *others)
            first, all_of_it = device_work(forward), device_work(both)
            ahead, total = (sum(launches for _, launches in work.values()) for work in (first, all_of_it))
            what = f"B={size}: {name}"
            rows.append((f"{what}, launches forward", ahead, None, "most"))
            rows.append((f"{what}, launches backward", total - ahead, None, "most"))
            rows.append((f"{what}, host ms forward", host_milliseconds(forward), None, "most"))
            rows.append((f"{what}, host ms forward and backward", host_milliseconds(both), None, "most"))
            for kernel, (took, launches) in list(all_of_it.items())[:8]:
                rows.append((f"{what}, device us, {launches:g} x {kernel[:48]}", took, None, "most"))


def compare_kernels(rows, sizes):
    """One program per anchor against tiles, around the size from which tiles are used."""
    from bcls.losses._triton import small

    def up_to(largest, run):
        small.LARGEST = largest
        return run()

    usual = small.LARGEST
    for size in sizes:
        similarity, relevance = matrices(size)
        narrow = KendallWindowLoss(beta=0.01)
        for name, loss in (("K-SW-HS", KendallWindowLoss()), ("BCLS", BCLSLoss()), ("beta 0.01", narrow)):
            run = partial(step, loss, (similarity,), relevance)
            took = medians({"anchors": partial(up_to, size, run), "tiles": partial(up_to, 0, run)}, repeats=15)
            for kernels, value in took.items():
                rows.append((f"B={size}: {name} by {kernels}, ms", value, None, "most"))
    small.LARGEST = usual


def compare_values(rows, sizes):
    for size in sizes:
        similarity, relevance = matrices(size)
        for name, ours, theirs in (
            ("K-SW-HS", KendallWindowLoss(), bench.plain(KendallWindowLoss())),
            ("BCLS", BCLSLoss(), bench.plain(BCLSLoss())),
        ):
            gap = difference(step(ours, (similarity,), relevance), step(theirs, (similarity,), relevance))
            rows.append((f"B={size}: fused {name} against plain, relative", gap, 1e-5, "most"))
        rounded = similarity.detach().bfloat16()
        short = step(BCLSLoss(), (rounded.clone().requires_grad_(),), relevance)
        exact = step(BCLSLoss(), (rounded.float().requires_grad_(),), relevance)
        gap = difference((short[0], short[1].float()), (exact[0], exact[1].bfloat16().float()))
        rows.append((f"B={size}: bfloat16 against float32 of the same values", gap, 1e-3, "most"))


def time_streaming(rows, sizes):
    for size in sizes:
        leaves, captions = bench.embeddings(size, 512, 384, DEVICE)
        run = partial(step, StreamingBCLSLoss(), leaves, captions)
        rows.append((f"B={size}: streaming BCLS, ms", medians({"": run}, repeats=1)[""], 3000.0, "most"))
        rows.append((f"B={size}: streaming BCLS, MB", megabytes(run, 2 * 4 * size * 512), 6000.0, "most"))
        if size <= 8192:
            gap = difference(run(), step(bench.matrix_bcls, leaves, captions))
            rows.append((f"B={size}: streaming against the matrix, relative", gap, 1e-5, "most"))


def time_dense(rows, sizes):
    for size in sizes:
        similarity, relevance = matrices(size)
        ours = partial(step, KendallLoss(), (similarity,), relevance)
        theirs = partial(step, bench.plain(KendallLoss()), (similarity,), relevance)
        took = medians({"fused": ours, "plain": theirs}, repeats=3)
        time_bar, memory_bar = (25.0, 200.0) if size == 2048 else (None, None)
        rows.append((f"B={size}: dense Kendall fused, ms", took["fused"], time_bar, "most"))
        rows.append((f"B={size}: dense Kendall plain, ms", took["plain"], None, "most"))
        rows.append((f"B={size}: dense Kendall fused, MB", megabytes(ours, 4 * size**2), memory_bar, "most"))
        rows.append((f"B={size}: dense Kendall against plain, relative", difference(ours(), theirs()), 1e-5, "most"))


def holds(value, bar, side):
    return bar is None or (value <= bar if side == "most" else value >= bar)


def parts_of(arguments):
    """Benchmarks and their sizes."""
    if arguments.profile:
        return (show_profile, QUICK_SIZES), (compare_kernels, (512, 1024, 2048, 4096))
    if arguments.quick:
        return (compare_values, (128, 1024, 4096)), (partial(time_losses, quick=True), QUICK_SIZES)
    return (
        (compare_values, (128, 1024, 4096)),
        (time_losses, SIZES),
        (time_dense, (512, 2048, 4096)),
        (time_streaming, (8192, 65536)),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the rows here")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--quick", action="store_true", help="only values with a target, in less than a minute")
    kind.add_argument("--profile", action="store_true", help="only the profile")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.kernels: needs an NVIDIA GPU; none is visible to torch")
    rows = []
    for part, sizes in parts_of(arguments):
        print(f"sizes {', '.join(map(str, sizes))} ...", file=sys.stderr, flush=True)
        part(rows, sizes)
        named = [dict(zip(("what", "value", "bar", "side"), row, strict=True)) for row in rows]
        keep(arguments.json, named, "Fused losses and their targets", DEVICE)  # kept even if a later part fails
    table = Table("what", "value", "bar", "holds", title=f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for what, value, bar, side in rows:
        limit = "" if bar is None else f"at {side} {bar:g}"
        table.add_row(what, f"{value:.4g}", limit, "" if bar is None else "yes" if holds(value, bar, side) else "NO")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
