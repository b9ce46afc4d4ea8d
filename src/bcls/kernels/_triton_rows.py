# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
"""Triton kernel for the gradient of small matrices: one launch, in which a program owns a block of rows.

The hard pairs of row anchors lie in the program's own rows; for those of column anchors it looks through all of them,
which is cheap as long as the matrix is small.
"""

import triton
import triton.language as tl

from bcls.kernels._triton_soft import soft_slope_of


@triton.jit
def slope_of(SHARES, WEIGHTS, anchor, window, upstream, wanted):
    """Weight of a hard pair in the gradient."""
    share = tl.load(SHARES + anchor, mask=wanted, other=0.0)
    return share * tl.load(WEIGHTS + window, mask=wanted, other=0.0) * upstream


@triton.jit
def row_slopes(
    S, R, IDS, WORK, WEIGHTS, BINARY, CONTINUOUS, OUT,
    size, s_row, s_column, r_row, r_column, windows, sharpness, soft_scale,
    LABELLED: tl.constexpr, HAS_IDS: tl.constexpr, SOFT: tl.constexpr, WINDOWED: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Gradient of a block of whole rows."""
    first = tl.program_id(0) * HEIGHT
    i = first + tl.arange(0, HEIGHT)
    wide_i = i.to(tl.int64)
    if SOFT:
        upstream = tl.load(BINARY).to(tl.float32) * soft_scale
        by_row = tl.load(WORK + i, mask=i < size, other=float("inf"))
    for start in range(0, size, WIDTH):
        j = start + tl.arange(0, WIDTH)
        tile = (i < size)[:, None] & (j < size)[None, :]
        slopes = tl.zeros([HEIGHT, WIDTH], tl.float32)
        if SOFT:
            by_column = tl.load(WORK + size + j, mask=j < size, other=float("inf"))
            slopes = upstream * soft_slope_of(
                S, R, IDS, by_row, by_column, i, i, j, tile, size, s_row, s_column, r_row, r_column, sharpness,
                LABELLED, HAS_IDS,
            )  # fmt: skip
        tl.store(OUT + wide_i[:, None] * size + j[None, :], slopes, mask=tile)

    if WINDOWED:
        tl.debug_barrier()  # the additions below come from other threads than the stores above
        upstream = tl.load(CONTINUOUS).to(tl.float32)
        shares = WORK + 2 * size
        # Where the negatives are; the positives lie one plane further.
        picks = WORK + 8 * size
        plane = 2 * size * windows
        last = tl.minimum(first + HEIGHT, size)
        # One entry a thread, as the additions have it: a wider layout would be moved back for them.
        for start in range(first * windows, last * windows, PAIRS):
            entry = tl.max_contiguous(start + tl.arange(0, PAIRS), 1)
            here = entry < last * windows
            negative = tl.load(picks + entry, mask=here, other=-1.0).to(tl.int32)
            positive = tl.load(picks + plane + entry, mask=here, other=-1.0).to(tl.int32)
            active = negative >= 0
            row = entry // windows
            slope = slope_of(shares, WEIGHTS, row, entry % windows, upstream, active)
            places = OUT + row.to(tl.int64) * size
            tl.atomic_add(places + negative, slope, mask=active, sem="relaxed")
            tl.atomic_add(places + positive, -slope, mask=active, sem="relaxed")
        for start in range(size * windows, plane, PAIRS):
            entry = tl.max_contiguous(start + tl.arange(0, PAIRS), 1)
            here = entry < plane
            negative = tl.load(picks + entry, mask=here, other=-1.0).to(tl.int32)
            positive = tl.load(picks + plane + entry, mask=here, other=-1.0).to(tl.int32)
            mine_negative = (negative >= first) & (negative < last)
            mine_positive = (positive >= first) & (positive < last)
            anchor = entry // windows
            slope = slope_of(shares, WEIGHTS, anchor, entry % windows, upstream, mine_negative | mine_positive)
            places = OUT + anchor - size
            tl.atomic_add(places + negative.to(tl.int64) * size, slope, mask=mine_negative, sem="relaxed")
            tl.atomic_add(places + positive.to(tl.int64) * size, -slope, mask=mine_positive, sem="relaxed")
