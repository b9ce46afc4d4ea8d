# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
"""Triton kernel that turns keys and soft sums into hinges, a block of anchors at a time."""

import triton
import triton.language as tl

from bcls.kernels._triton_tiles import BEFORE, NEVER


@triton.jit
def larger(a, b):
    """The operator of a running maximum."""
    return tl.maximum(a, b)


@triton.jit
def score_of(codes):
    """The float32 that a code stands for."""
    codes = codes.to(tl.int32)
    return tl.where(codes < 0, codes ^ BEFORE, codes).to(tl.float32, bitcast=True)


@triton.jit
def soft_hinges(
    SUMS, parts, OWN, own_stride, VALUES, LEVELS, a, anchors, sharpness, margin, scale,
    AVERAGE: tl.constexpr, PARTS: tl.constexpr, ANCHORS: tl.constexpr,
):  # fmt: skip
    """Merge the parts of the soft sums of a block of anchors and write their hinges."""
    here = a < anchors
    plane = tl.cast(parts, tl.int64) * anchors
    best = tl.full([ANCHORS], float("-inf"), tl.float32)
    total = tl.zeros([ANCHORS], tl.float32)
    count = tl.zeros([ANCHORS], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        mask = (part < parts)[:, None] & here[None, :]
        places = SUMS + part.to(tl.int64)[:, None] * anchors + a[None, :]
        tops = tl.load(places, mask=mask, other=float("-inf"))
        sums = tl.load(places + plane, mask=mask, other=0.0)
        top = tl.maximum(best, tl.max(tops, 0))
        base = tl.where(top == float("-inf"), 0.0, top)
        total = total * tl.exp2(best - base) + tl.sum(sums * tl.exp2(tops - base[None, :]), 0)
        best = top
        if AVERAGE:
            count += tl.sum(tl.load(places + 2 * plane, mask=mask, other=0.0), 0)
    level = tl.where(best == float("-inf"), 0.0, best) + tl.log2(total)
    maximum = level / sharpness
    if AVERAGE:
        maximum -= tl.log2(tl.maximum(count, 1.0)) / sharpness
    own = tl.load(OWN + a.to(tl.int64) * own_stride, mask=here, other=0.0).to(tl.float32)
    hinge = maximum - own + margin
    # A NaN is not flat; a maximum may have passed over it, a sum has not.
    active = ((best != float("-inf")) & ((hinge > 0) | (hinge != hinge))) | (total != total)
    tl.store(VALUES + a, tl.where(active, hinge * scale, 0.0), mask=here)
    tl.store(LEVELS + a, tl.where(active, level, float("inf")), mask=here)


@triton.jit
def window_hinges(
    KEYS, plane, anchor_stride, window_stride, MARGINS, WEIGHTS, VALUES, PICKS, picks_plane, SHARES,
    a, anchors, windows, scale, VALID_ONLY: tl.constexpr, WINDOWS: tl.constexpr,
):  # fmt: skip
    """Running extrema over the bins of a block of anchors; write their hinges and hard pairs."""
    here = a < anchors
    window = tl.arange(0, WINDOWS)
    inside = here[:, None] & (window < windows)[None, :]
    places = KEYS + a.to(tl.int64)[:, None] * anchor_stride + window.to(tl.int64)[None, :] * window_stride
    negative = tl.associative_scan(tl.load(places, mask=inside, other=NEVER), 1, larger)
    positive = tl.associative_scan(tl.load(places + plane, mask=inside, other=NEVER), 1, larger, reverse=True)
    valid = inside & (negative != NEVER) & (positive != NEVER)
    margins = tl.load(MARGINS + window, mask=window < windows, other=0.0)
    weights = tl.load(WEIGHTS + window, mask=window < windows, other=0.0)
    gaps = score_of(negative >> 32) - score_of(~(positive >> 32)) + margins[None, :]
    active = valid & ((gaps > 0) | (gaps != gaps))
    share = tl.zeros_like(a).to(tl.float32) + scale
    if VALID_ONLY:
        share = share / tl.maximum(tl.sum(valid.to(tl.float32), 1), 1.0)
    value = tl.sum(tl.where(active, gaps * weights[None, :], 0.0), 1) * share
    tl.store(VALUES + a, value, mask=here)
    tl.store(SHARES + a, share, mask=here)
    out = PICKS + a.to(tl.int64)[:, None] * windows + window[None, :]
    tl.store(out, tl.where(active, (-(negative & BEFORE) + BEFORE).to(tl.int32), -1), mask=inside)
    tl.store(out + picks_plane, tl.where(active, (-(positive & BEFORE) + BEFORE).to(tl.int32), -1), mask=inside)


@triton.jit
def finish_anchors(
    ROW_KEYS, COLUMN_KEYS, MARGINS, WEIGHTS, ROW_SUMS, COLUMN_SUMS, ROW_OWN, COLUMN_OWN,
    VALUES, LEVELS, PICKS, SHARES,
    rows, columns, row_programs, row_plane, column_plane, picks_plane, row_parts, column_parts,
    row_own, column_own, windows, sharpness, margin, soft_scale, window_scale,
    SOFT: tl.constexpr, AVERAGE: tl.constexpr, WINDOWED: tl.constexpr, VALID_ONLY: tl.constexpr,
    ANCHORS: tl.constexpr, WINDOWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Hinges of all anchors, both directions: the first ``row_programs`` programs take the row anchors."""
    program = tl.program_id(0)
    both = rows + columns
    if program < row_programs:
        a = program * ANCHORS + tl.arange(0, ANCHORS)
        if SOFT:
            soft_hinges(
                ROW_SUMS, row_parts, ROW_OWN, row_own, VALUES, LEVELS, a, rows, sharpness, margin, soft_scale,
                AVERAGE, PARTS, ANCHORS,
            )  # fmt: skip
        else:
            tl.store(VALUES + a, tl.zeros_like(a).to(tl.float32), mask=a < rows)
        if WINDOWED:
            window_hinges(
                ROW_KEYS, row_plane, windows, 1, MARGINS, WEIGHTS, VALUES + both, PICKS, picks_plane, SHARES,
                a, rows, windows, window_scale, VALID_ONLY, WINDOWS,
            )  # fmt: skip
        else:
            tl.store(VALUES + both + a, tl.zeros_like(a).to(tl.float32), mask=a < rows)
    else:
        a = (program - row_programs) * ANCHORS + tl.arange(0, ANCHORS)
        if SOFT:
            soft_hinges(
                COLUMN_SUMS, column_parts, COLUMN_OWN, column_own, VALUES + rows, LEVELS + rows, a, columns,
                sharpness, margin, soft_scale, AVERAGE, PARTS, ANCHORS,
            )  # fmt: skip
        else:
            tl.store(VALUES + rows + a, tl.zeros_like(a).to(tl.float32), mask=a < columns)
        if WINDOWED:
            window_hinges(
                COLUMN_KEYS, column_plane, 1, columns, MARGINS, WEIGHTS, VALUES + both + rows,
                PICKS + tl.cast(rows, tl.int64) * windows, picks_plane, SHARES + rows,
                a, columns, windows, window_scale, VALID_ONLY, WINDOWS,
            )  # fmt: skip
        else:
            tl.store(VALUES + both + rows + a, tl.zeros_like(a).to(tl.float32), mask=a < columns)
