# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
"""Triton kernels of the binary half; the launches are in :mod:`bcls.kernels._triton_engine`."""

import triton
import triton.language as tl

from bcls.kernels._triton_tiles import is_other

SAME_FROM = tl.constexpr(1 - 1e-4)


@triton.jit
def store_sums(SUMS, parts, part, x, number, top, total, count, AVERAGE: tl.constexpr):
    """One part of the soft sums of some anchors."""
    out = SUMS + part.to(tl.int64) * number + x
    plane = parts.to(tl.int64) * number
    tl.store(out, top, mask=x < number)
    tl.store(out + plane, total, mask=x < number)
    if AVERAGE:
        tl.store(out + 2 * plane, count, mask=x < number)


@triton.jit
def sum_negatives(
    S, R, IDS, ROW_SUMS, COLUMN_SUMS,
    rows, columns, first, s_row, s_column, r_row, r_column, span, sharpness,
    LABELLED: tl.constexpr, HAS_IDS: tl.constexpr, AVERAGE: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Soft sums of a block of rows and a span of columns; a tile serves both directions.

    Rows are summed up cell by cell, each cell relative to its own greatest exponent, and merged once at the end:
    threads wait for each other only over the columns' sums.
    """
    block = tl.program_id(0)
    i = block * HEIGHT + tl.arange(0, HEIGHT)
    in_rows = i < rows
    number = first + i
    row_ids = i
    if HAS_IDS:
        row_ids = tl.load(IDS + number, mask=in_rows, other=0)
    wide_i = i.to(tl.int64)
    best = tl.full([HEIGHT, WIDTH], float("-inf"), tl.float32)
    total = tl.zeros([HEIGHT, WIDTH], tl.float32)
    count = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for step in range(span // WIDTH):
        j = tl.program_id(1) * span + step * WIDTH + tl.arange(0, WIDTH)
        wide_j = j.to(tl.int64)
        tile = in_rows[:, None] & (j < columns)[None, :]
        scores = tl.load(S + wide_i[:, None] * s_row + wide_j[None, :] * s_column, mask=tile, other=0.0).to(tl.float32)
        allowed = is_other(tile, number, j, row_ids, IDS, columns, HAS_IDS)
        if LABELLED:
            labels = tl.load(R + wide_i[:, None] * r_row + wide_j[None, :] * r_column, mask=tile, other=0.0)
            allowed = allowed & (labels < SAME_FROM)
        powers = tl.where(allowed, scores * sharpness, float("-inf"))
        top = tl.maximum(best, powers)
        base = tl.where(top == float("-inf"), 0.0, top)
        total = total * tl.exp2(best - base) + tl.exp2(powers - base)
        best = top
        top = tl.max(powers, 0)
        base = tl.where(top == float("-inf"), 0.0, top)
        sums = tl.sum(tl.exp2(powers - base[None, :]), 0)
        if AVERAGE:
            count += allowed.to(tl.float32)
        store_sums(
            COLUMN_SUMS, tl.num_programs(0), block, j, columns, top, sums, tl.sum(allowed.to(tl.float32), 0), AVERAGE
        )
    top = tl.max(best, 1)
    base = tl.where(top == float("-inf"), 0.0, top)
    sums = tl.sum(total * tl.exp2(best - base[:, None]), 1)
    store_sums(ROW_SUMS, tl.num_programs(1), tl.program_id(1), i, rows, top, sums, tl.sum(count, 1), AVERAGE)


@triton.jit
def soft_slope_of(
    S, R, IDS, by_row, by_column, i, number, j, tile, columns, s_row, s_column, r_row, r_column, sharpness,
    LABELLED: tl.constexpr, HAS_IDS: tl.constexpr,
):  # fmt: skip
    """Gradient of the binary half at a tile: softmax weights, less one for each own pair whose hinge is not flat."""
    wide_i = i.to(tl.int64)
    wide_j = j.to(tl.int64)
    row_ids = i
    if HAS_IDS:
        row_ids = tl.load(IDS + number, mask=number < columns, other=0)
    scores = tl.load(S + wide_i[:, None] * s_row + wide_j[None, :] * s_column, mask=tile, other=0.0).to(tl.float32)
    allowed = is_other(tile, number, j, row_ids, IDS, columns, HAS_IDS)
    if LABELLED:
        labels = tl.load(R + wide_i[:, None] * r_row + wide_j[None, :] * r_column, mask=tile, other=0.0)
        allowed = allowed & (labels < SAME_FROM)
    powers = scores * sharpness
    slopes = tl.exp2(powers - by_row[:, None]) + tl.exp2(powers - by_column[None, :])
    active = (by_row[:, None] < float("inf")).to(tl.float32) + (by_column[None, :] < float("inf")).to(tl.float32)
    return tl.where(allowed, slopes, tl.where(number[:, None] == j[None, :], -active, 0.0))


@triton.jit
def soft_slopes(
    S, R, IDS, ROW_LEVELS, COLUMN_LEVELS, UPSTREAM, OUT,
    rows, columns, first, s_row, s_column, r_row, r_column, sharpness, scale,
    LABELLED: tl.constexpr, HAS_IDS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradient of the binary half, written once."""
    i = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    j = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    tile = (i < rows)[:, None] & (j < columns)[None, :]
    by_row = tl.load(ROW_LEVELS + i, mask=i < rows, other=float("inf"))
    by_column = tl.load(COLUMN_LEVELS + j, mask=j < columns, other=float("inf"))
    slopes = soft_slope_of(
        S, R, IDS, by_row, by_column, i, first + i, j, tile, columns, s_row, s_column, r_row, r_column, sharpness,
        LABELLED, HAS_IDS,
    )  # fmt: skip
    upstream = tl.load(UPSTREAM).to(tl.float32) * scale
    tl.store(OUT + i.to(tl.int64)[:, None] * columns + j[None, :], slopes * upstream, mask=tile)
