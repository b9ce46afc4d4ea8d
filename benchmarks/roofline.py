"""Roofline of the Triton kernels on an NVIDIA GPU: ``python -m benchmarks.roofline --json roofline.json``.

Device time of each kernel of a forward and backward pass, by torch's profiler, against the bytes that it must at least
read and write: inputs once, outputs once, a tensor that is changed in place twice. Memory that only the kernel itself
uses is not counted, nor are the gradient cells of hard pairs, whose number depends on the data. All launches of a step
are added up. Kernels of torch have no formula: their names and their time are in the last row of each step.
"""

import argparse
import re
import sys
import time
from functools import partial

import torch
from torch.nn.functional import normalize

from bcls.experiments import bench
from bcls.losses import BCLSLoss, KendallLoss, KendallWindowLoss, StreamingBCLSLoss
from bcls.losses.definitions import sliding_windows
from bcls.models.config import SafConfig, SgrConfig
from bcls.models.cross_attention import FiltrationHead, ReasoningHead, image_side
from bcls.models.layers import Padded
from bcls.models.similarity_vectors import _image_parts
from benchmarks.kernels import device_work
from benchmarks.tables import keep, show

#: B of the losses, of dense Kendall and of the streaming loss; images, regions, words, D and K of the models.
SIZES, DENSE, STREAMED, MODELS = (1024, 4096, 16384), 4096, 8192, (128, 36, 23, 1024, 256)
#: Rows of the bfloat16 matrices whose product is the limit of the operations.
PRODUCT = STREAMED
TITLE = (
    "kernels of a forward and backward pass: device time, the least bytes that they must read and write, percent of "
    "the bandwidth of a copy of the largest matrix (can exceed 100 if the data stays in the L2 cache), products as "
    f"percent of a bfloat16 product of {PRODUCT} x {PRODUCT} matrices, and the time as a multiple of a B x B float32 "
    "copy. The kernels of a step without a formula are added up in one row"
)


def loss_formulas(size, *, soft, merged=False):
    """Bytes of the kernels of a loss, with the binary term if ``soft``; the streaming loss reads ``merged`` sums."""
    from bcls.losses._triton import engine, ranks

    windows = sliding_windows().count
    matrix, keys, picks = 4 * size**2, 32 * size * windows, 16 * size * windows
    parts = engine._ceil(size, engine._SUM_HEIGHT)
    parts += engine._ceil(size, engine._span(size, size, engine._SUM_HEIGHT, engine._SUM_WIDTH))
    sums = 8 * size * parts  # maximum and sum of each anchor and part
    ends = (16 * size if merged else sums) + 20 * size if soft else 0  # sums, own scores; values and levels
    moved = {
        "anchor_hinges": (4 if soft else 2) * matrix,  # scores, labels; BCLS adds to all cells of the gradient
        "check_matrices": 2 * matrix,  # scores, labels
        "mine_tiles": 2 * matrix + 2 * keys,  # scores, labels; keys of rows and columns in place
        "sum_negatives": 2 * matrix + sums,  # scores, labels; sums
        "finish_anchors": ends + keys + picks + 16 * size + 4 * windows,  # keys, weights; hard pairs, values, shares
        "soft_slopes": 3 * matrix + 8 * size,  # scores, labels, levels; gradient
        "scatter_pairs": picks + 8 * size + 4 * windows,  # hard pairs, shares, weights
        "sort_rows": 14 * matrix,  # by direction: labels; int64 keys; scores, int32 places; int64 keys
        "find_bounds": 8 * matrix,  # by direction: keys; places, two bounds in 32 bits
        "take_bounds": 8 * matrix,  # by direction: keys, bounds; bounds
        "count_pairs": 8 * matrix + 32 * size,  # by direction: keys, bounds; net counts, two sums of an anchor
        # By direction: two keys, net counts, scores; gradient, a sum of hinges of each part of an anchor.
        "add_slopes": 14 * matrix + 16 * size * engine._ceil(size, ranks._WIDTH),
    }
    return {kernel: (count, None) for kernel, count in moved.items()}


def model_formulas(images, regions, nodes, width, size, *, item, parts, steps):
    """Bytes and operations of the kernels of SAF and SGR for as many captions as images.

    ``item`` is the bytes of a number, ``parts`` the launches of the backward kernel of similarity vectors, and
    ``steps`` the reasoning steps of SGR, the last of which computes one node.
    """
    rows = images * nodes  # of all captions
    vectors, weights, gram = images * rows, images * regions * rows, 4 * images * regions**2
    fixed, given = rows * width + size * width, images * regions * width + weights
    pairs, asked, read, mask = images**2 * size, (steps - 1) * nodes + 1, steps * nodes, steps * rows
    return {
        # Forward and again in the backward pass: dot products, products of regions; weights.
        "_attend_kernel": (2 * (2 * item * weights + gram), 4 * regions**2 * vectors),
        # The same and a float32 gradient; gradient of the dot products, two float32 factors of that of gram.
        "_attend_backward_kernel": ((2 * item + 12) * weights + gram, 2 * regions**2 * vectors),
        # Regions, weights, words, layer, bias; similarity vectors and float32 norms.
        "_local_kernel": (
            item * (given + fixed + size + vectors * size) + 4 * vectors, 2 * vectors * width * (regions + size)
        ),
        # The same without bias, gradient of the vectors; gradient of contexts, squares; float32 gradient of weights.
        "_local_backward_kernel": (
            item * (given + parts * fixed + vectors * (size + 2 * width)) + 4 * weights,
            2 * vectors * width * (2 * regions + size),
        ),
        # Similarity vectors, their gradient, norms; gradients before the norm, of all vectors and of the whole pairs.
        "_through_norm_kernel": (item * (3 * vectors * size + pairs) + 4 * vectors, None),
        # Queries, nodes, mask; as many results as queries.
        "_mix_kernel": (item * pairs * (2 * asked + read) + mask, 4 * pairs * nodes * asked),
        # Queries, nodes, mask, gradient; gradients of queries and nodes.
        "_mix_backward_kernel": (item * pairs * (3 * asked + 2 * read) + mask, 10 * pairs * nodes * asked),
    }  # fmt: skip


def model_step(head, device, images, regions, words, width):
    """A step of a head on random unit vectors, with bfloat16 products on a GPU."""
    torch.manual_seed(0)
    shapes = (images, regions, width), (images, width), (images, words, width), (images, width)
    leaves = tuple(normalize(torch.randn(shape, device=device), dim=-1).requires_grad_() for shape in shapes)
    lengths = torch.full((images,), words, device=device)
    head = head.to(device).train()

    def score(values, image_vectors, captions, caption_vectors):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return head(image_side(Padded(values), image_vectors), Padded(captions, lengths), caption_vectors).sum()

    return partial(bench.step, score, leaves)


def cases(device, sizes=SIZES, dense=DENSE, streamed=STREAMED, models=MODELS):
    """Name, B, step and formulas of everything that is measured."""
    for size in sizes:
        matrices = bench.matrices(size, device)
        for name, loss in (("K-SW-HS", KendallWindowLoss()), ("BCLS", BCLSLoss())):
            run = partial(bench.step, loss, matrices[:1], matrices[1])
            yield name, size, run, loss_formulas(size, soft=name == "BCLS")
    matrices = bench.matrices(dense, device)
    run = partial(bench.step, KendallLoss(), matrices[:1], matrices[1])
    yield "dense Kendall", dense, run, loss_formulas(dense, soft=False)
    leaves, captions = bench.embeddings(streamed, 512, 384, device)
    run = partial(bench.step, StreamingBCLSLoss(), leaves, captions)
    yield "streaming BCLS", streamed, run, loss_formulas(streamed, soft=True, merged=True)
    images, regions, words, width, size = models
    settings = {"item": 2 if device.type == "cuda" else 4, "steps": SgrConfig().steps}
    settings["parts"] = len(_image_parts(images, images * (words + 1) * width, device))
    formulas = model_formulas(images, regions, words + 1, width, size, **settings)
    for head, config in ((FiltrationHead, SafConfig), (ReasoningHead, SgrConfig)):
        run = model_step(head(config(width=width, similarity_width=size)), device, images, regions, words, width)
        yield ("SAF" if config is SafConfig else "SGR"), images, run, formulas


def rows_of(case, work, formulas, limits):
    """Rows of one step from microseconds and launches by kernel, and from bytes and operations by kernel.

    ``limits`` are microseconds of a B x B copy, GB/s of the largest copy and TFLOP/s of a matrix product.
    """
    copy, bandwidth, products = limits
    rows, rest = [], {kernel: one for kernel, one in work.items() if kernel not in formulas}
    named = {kernel: one for kernel, one in work.items() if kernel in formulas}
    if rest:
        names = sorted({short_name(kernel) for kernel in rest})
        named[f"no formula: {', '.join(names)}"] = added(rest)
    for kernel, (took, launches) in named.items():
        moved, operations = formulas.get(kernel, (None, None))
        speed = None if moved is None else moved / took / 1e3
        rate = None if operations is None else operations / took / 1e6
        row = {"step": case, "kernel": kernel, "launches": launches, "us": took}
        row |= {"MB": None if moved is None else moved / 1e6, "GB/s": speed}
        row["% of copy"] = None if speed is None else 100 * speed / bandwidth
        row |= {"TFLOP/s": rate, "% of product": None if rate is None else 100 * rate / products}
        rows.append({**row, "B x B copies": took / copy})
    return rows


def short_name(kernel):
    """The name of a CUDA kernel without its return type, namespaces, template arguments and arguments."""
    name = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split(r"[<(]", name)[0].strip().rpartition("::")[2]


def added(work):
    """Microseconds and launches of several kernels."""
    return tuple(map(sum, zip(*work.values(), strict=True)))


def copy_work(size, device):
    """Microseconds and launches of a copy of a float32 matrix."""
    source = torch.ones(size, size, device=device)
    return added(device_work(partial(torch.empty_like(source).copy_, source)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", help="also write the rows to this file")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.roofline: needs an NVIDIA GPU; none is visible to torch")
    device, started = torch.device(chosen.device), time.perf_counter()
    matrix = torch.randn(PRODUCT, PRODUCT, device=device, dtype=torch.bfloat16)
    product = added(device_work(partial(torch.matmul, matrix, matrix)))
    copies = {size: copy_work(size, device) for size in sorted({*SIZES, DENSE, STREAMED, MODELS[0]})}
    speeds = 8 * max(SIZES) ** 2 / copies[max(SIZES)][0] / 1e3, 2 * PRODUCT**3 / product[0] / 1e6
    rows = []
    for size, work in copies.items():
        rows += rows_of(f"B = {size:,}", {"copy": work}, {"copy": (8 * size**2, None)}, (work[0], *speeds))
    known = {"product": (3 * 2 * PRODUCT**2, 2 * PRODUCT**3)}
    rows += rows_of(f"bfloat16, B = {PRODUCT:,}", {"product": product}, known, (copies[STREAMED][0], *speeds))
    for name, size, run, formulas in cases(device):
        rows += rows_of(f"{name}, B = {size:,}", device_work(run), formulas, (copies[size][0], *speeds))
        keep(chosen.json, rows, TITLE, device)  # kept even if a later step fails
        print(f"{name}, B = {size:,}: after {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    show("Kernels of a forward and backward pass", rows)


if __name__ == "__main__":
    main()
