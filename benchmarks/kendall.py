"""Dense Kendall loss, by ranks and by comparing all pairs: ``python -m benchmarks.kendall``, on a GPU if there is one.

Forward and backward pass in milliseconds, medians of runs that take turns, and relative differences of value and
gradient. An implementation is left out where it takes seconds. ``--tune`` varies the settings of the kernels.
"""

import argparse
import itertools
import time
from functools import partial
from pathlib import Path

import torch

from bcls.experiments.bench import matrices, medians, megabytes, plain, step
from bcls.losses import KendallLoss, KendallWindowLoss
from bcls.losses._torch import pairs
from benchmarks.tables import difference, keep

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GPU = DEVICE.type == "cuda"
#: Largest batch of each implementation.
UP_TO = {
    "window loss": 16384,
    "ranks, Triton": 16384 if GPU else 0,
    "ranks, torch": 16384 if GPU else 2048,
    "pairs, Triton": 4096 if GPU else 0,
    "pairs, torch": 1024,
}


def dense(how, loss, *tensors):
    """The loss with one of the implementations."""
    from_size = 1 if how.startswith("ranks") else 10**9
    pairs.RANKS_FROM[DEVICE.type] = from_size
    if how.endswith("torch"):
        return plain(loss)(*tensors)
    from bcls.losses._triton import engine

    engine.RANKS_FROM = from_size
    return loss(*tensors)


def compare(size, arguments):
    similarity, relevance = matrices(size, DEVICE)
    loss = KendallLoss(margin=arguments.margin)
    rivals = {}
    for how, largest in UP_TO.items():
        if size <= largest:
            function = KendallWindowLoss() if how == "window loss" else partial(dense, how, loss)
            rivals[how] = partial(step, function, (similarity,), relevance)
    took = medians(rivals, DEVICE, arguments.repeats if size <= 4096 else 1)
    names = [how for how in rivals if how != "window loss"]
    first = rivals[names[0]]()
    exact = None
    if size <= 512:
        wide = similarity.detach().double().requires_grad_()
        exact = step(partial(dense, "pairs, torch", loss), (wide,), relevance)
    rows = []
    for how, milliseconds in took.items():
        row = {"B": size, "implementation": how, "ms": milliseconds, "ratio to the window loss": None}
        row["ratio to the window loss"] = milliseconds / took["window loss"]
        if how != "window loss":
            value, gradient = rivals[how]()
            row["difference to the first"] = difference((value, gradient), first)
            if exact is not None:
                row["difference to float64"] = difference((value.double(), gradient.double()), exact)
        if GPU:
            row["MB"] = megabytes(rivals[how], DEVICE, 4 * size**2)
        rows.append(row)
        print(", ".join(f"{key} {val:.4g}" if isinstance(val, float) else f"{key} {val}" for key, val in row.items()))
    return rows


def tune(size):
    """Milliseconds of a step by the settings of the kernels."""
    from bcls.losses._triton import ranks

    similarity, relevance = matrices(size, DEVICE)
    run = partial(step, partial(dense, "ranks, Triton", KendallLoss()), (similarity,), relevance)
    names = "SORTED_UP_TO", "_KEYS", "_STEP", "_WARPS"
    usual = [getattr(ranks, name) for name in names]
    steps = (32, 1), (64, 1), (64, 2)
    for longest, keys, step_and_warps in [(1, 32, steps[0]), *itertools.product((16384,), (8, 16, 32, 64), steps)]:
        for name, value in zip(names, (longest, keys, *step_and_warps), strict=True):
            setattr(ranks, name, value)
        started = time.perf_counter()
        milliseconds = medians({"": run}, DEVICE, 1)[""]
        rows = "rows sorted by torch" if longest == 1 else f"{keys} keys in a thread"
        rows += ", steps of {} with {} warps".format(*step_and_warps)
        print(f"B {size}: {rows}: {milliseconds:.4g} ms, {time.perf_counter() - started:.0f} s with compilation")
    for name, value in zip(names, usual, strict=True):
        setattr(ranks, name, value)


def show_kernels(size):
    """Device time by kernel."""
    similarity, relevance = matrices(size, DEVICE)
    run = partial(step, partial(dense, "ranks, Triton", KendallLoss()), (similarity,), relevance)
    run()
    with torch.profiler.profile() as profiler:
        run()
        torch.cuda.synchronize()
    print(profiler.key_averages().table(sort_by="self_device_time_total", row_limit=12, max_name_column_width=40))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = [512, 1024, 2048, 4096, 8192, 16384] if GPU else [32, 64, 128, 256, 512, 1024, 2048]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes)
    parser.add_argument("--margin", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tune", action="store_true", help="only vary the settings of the kernels")
    parser.add_argument("--profile", action="store_true", help="only the device time by kernel")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    rows = []
    for size in arguments.sizes:
        if arguments.tune:
            tune(size)
        elif arguments.profile:
            show_kernels(size)
        else:
            rows += compare(size, arguments)
            keep(arguments.json, rows, "Dense Kendall loss", DEVICE)


if __name__ == "__main__":
    main()
