# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
"""Triton kernel for small matrices: one program for each anchor, which holds all its scores and labels.

One launch computes values and gradient and checks the input: for small matrices, launches cost more than computation.
The layout of the shared memory is described in :mod:`bcls.losses._triton.small`.
"""

import triton
import triton.language as tl

from bcls.losses._triton.kernels import BEFORE, NEVER, SAME_FROM, bin_of, larger, score_of
from bcls.losses._triton.values import bad_cells, sum_up


@triton.jit
def soft_hinge(scores, allowed, own, sharpness, margin, scale, AVERAGE: tl.constexpr):
    """Binary term of one anchor, its base-2 log-sum-exp, and whether its hinge is active."""
    powers = tl.where(allowed, scores * sharpness, float("-inf"))
    top = tl.max(powers, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(powers - base), 0)
    level = base + tl.log2(total)
    maximum = level / sharpness
    if AVERAGE:
        count = tl.sum(allowed.to(tl.float32), 0)
        maximum -= tl.log2(tl.maximum(count, 1.0)) / sharpness
    hinge = maximum - own + margin
    # NaN counts as active; a maximum may ignore it, a sum does not.
    active = ((top != float("-inf")) & ((hinge > 0) | (hinge != hinge))) | (total != total)
    return tl.where(active, hinge * scale, 0.0), level, active


@triton.jit
def hardest_pairs(
    KEYS, scores, negative, positive, x, windows, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr, WINDOWS: tl.constexpr
):  # fmt: skip
    """Keys of the hardest negative and positive of every window, from bins that belong to this program.

    ``negative`` is the first window in which a candidate is negative, ``positive`` the number of windows in which it
    is positive. Barriers separate the writes of some threads from the reads of others.
    """
    codes = scores.to(tl.int32, bitcast=True)
    codes = tl.where(codes < 0, codes ^ BEFORE, codes)
    place = (-x + BEFORE).to(tl.int64)
    negative_keys = (codes.to(tl.int64) << 32) | place
    positive_keys = ((~codes).to(tl.int64) << 32) | place
    as_negative = negative < windows
    as_positive = positive > 0
    negatives = KEYS + tl.where(as_negative, negative, 0)
    positives = KEYS + windows + tl.where(as_positive, positive - 1, 0)
    window = tl.arange(0, WINDOWS)
    never = tl.full([WINDOWS], NEVER, tl.int64)
    tl.store(KEYS + window, never, mask=window < windows)
    tl.store(KEYS + windows + window, never, mask=window < windows)
    tl.debug_barrier()
    early = x < AT_ONCE
    tl.atomic_max(negatives, negative_keys, mask=as_negative & early, sem="relaxed")
    tl.atomic_max(positives, positive_keys, mask=as_positive & early, sem="relaxed")
    tl.debug_barrier()
    if BLOCK > AT_ONCE:  # compare with the current keys first: few of the others are greater
        late = x >= AT_ONCE
        best = tl.load(negatives, mask=as_negative & late, other=0, cache_modifier=".cg")
        least = tl.load(positives, mask=as_positive & late, other=0, cache_modifier=".cg")
        tl.atomic_max(negatives, negative_keys, mask=as_negative & late & (negative_keys > best), sem="relaxed")
        tl.atomic_max(positives, positive_keys, mask=as_positive & late & (positive_keys > least), sem="relaxed")
        tl.debug_barrier()
    below = tl.load(KEYS + window, mask=window < windows, other=NEVER, cache_modifier=".cg")
    above = tl.load(KEYS + windows + window, mask=window < windows, other=NEVER, cache_modifier=".cg")
    return tl.associative_scan(below, 0, larger), tl.associative_scan(above, 0, larger, reverse=True)


@triton.jit
def total_of(VALUES, number, BLOCK: tl.constexpr):
    """Sum of values that other programs wrote; bypasses the first cache, which may hold older values."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, number, BLOCK):
        # One number per thread: wider loads would change the layout of the scores, which suits the atomics.
        place = tl.max_contiguous(start + tl.arange(0, BLOCK), 1)
        total += tl.load(VALUES + place, mask=place < number, other=0.0, cache_modifier=".cg")
    return tl.sum(total, 0)


@triton.jit
def anchor_hinges(  # noqa: C901
    S, R, IDS, EDGES, WORK, BINARY, CONTINUOUS, ARRIVED, REPORT, OUT, UP_BINARY, UP_CONTINUOUS,
    size, s_row, s_column, r_row, r_column, windows, sharpness, margin, soft_scale, window_scale, weight,
    LABELLED: tl.constexpr, HAS_IDS: tl.constexpr, SOFT: tl.constexpr, AVERAGE: tl.constexpr,
    WINDOWED: tl.constexpr, VALID_ONLY: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr, WINDOWS: tl.constexpr,
):  # fmt: skip
    """Hinges of one anchor, rows first, then columns; the last program sums what all have written.

    With ``OUT``, a matrix of zeros, the gradient is added to it, times the upstream gradients if they are given.
    """
    program = tl.program_id(0)
    by_row = program < size
    anchor = tl.where(by_row, program, program - size)
    x = tl.arange(0, BLOCK)
    inside = x < size
    wide = x.to(tl.int64)
    start = anchor.to(tl.int64)
    s_start = tl.where(by_row, tl.cast(s_row, tl.int64), tl.cast(s_column, tl.int64)) * start
    s_step = tl.where(by_row, tl.cast(s_column, tl.int64), tl.cast(s_row, tl.int64))
    scores = tl.load(S + s_start + wide * s_step, mask=inside, other=0.0).to(tl.float32)
    labels = scores
    if LABELLED:
        r_start = tl.where(by_row, tl.cast(r_row, tl.int64), tl.cast(r_column, tl.int64)) * start
        r_step = tl.where(by_row, tl.cast(r_column, tl.int64), tl.cast(r_row, tl.int64))
        labels = tl.load(R + r_start + wide * r_step, mask=inside, other=0.0)
    other = inside & (x != anchor)
    if HAS_IDS:
        other = other & (tl.load(IDS + x, mask=inside, other=0) != tl.load(IDS + anchor))
    both = 2 * size
    bounds = WORK + 2 * both
    notes = (WORK + 3 * both).to(tl.pointer_type(tl.int64), bitcast=True)
    keys = notes + both
    out_start = tl.where(by_row, start * size, start)
    out_step = tl.where(by_row, 1, size).to(tl.int64)

    if by_row:  # check every cell once
        cells = start * size + wide
        tl.store(notes + program, tl.min(bad_cells(scores, cells, inside), 0))
        if LABELLED:
            tl.store(notes + size + program, tl.min(bad_cells(labels, cells, inside), 0))
            tl.store(bounds + program, tl.min(tl.where(inside, labels.to(tl.float32), float("inf")), 0))
            tl.store(bounds + size + program, tl.max(tl.where(inside, labels.to(tl.float32), -float("inf")), 0))

    if SOFT:
        allowed = other
        if LABELLED:
            allowed = allowed & (labels < SAME_FROM)
        own = tl.load(S + s_start + start * s_step).to(tl.float32)
        value, level, active = soft_hinge(scores, allowed, own, sharpness, margin, soft_scale, AVERAGE)
        tl.store(WORK + program, value)
        if OUT is not None:
            slope = tl.cast(soft_scale, tl.float32)
            if UP_BINARY is not None:
                slope = slope * tl.load(UP_BINARY).to(tl.float32)
            if active:
                slopes = tl.where(allowed, tl.exp2(scores * sharpness - level), -1.0) * slope
                places = OUT + out_start + wide * out_step
                tl.atomic_add(places, slopes, mask=allowed | (x == anchor), sem="relaxed")

    if WINDOWED:
        steps = (labels.to(tl.float64) + tl.load(EDGES)) * tl.load(EDGES + 1)
        negative = tl.where(inside, bin_of(steps, windows), windows)
        positive = tl.where(inside, bin_of(steps - tl.load(EDGES + 2), windows), 0)
        own_keys = keys + program.to(tl.int64) * 2 * windows
        below, above = hardest_pairs(own_keys, scores, negative, positive, x, windows, AT_ONCE, BLOCK, WINDOWS)
        valid = (below != NEVER) & (above != NEVER)
        gaps = score_of(below >> 32) - score_of(~(above >> 32))
        active = valid & ((gaps > 0) | (gaps != gaps))
        share = tl.cast(window_scale, tl.float32)
        if VALID_ONLY:
            share = share / tl.maximum(tl.sum(valid.to(tl.float32), 0), 1.0)
        tl.store(WORK + both + program, tl.sum(tl.where(active, gaps * weight, 0.0), 0) * share)
        if OUT is not None:
            slopes = share * weight
            if UP_CONTINUOUS is not None:
                slopes = slopes * tl.load(UP_CONTINUOUS).to(tl.float32)
            place = -(below & BEFORE) + BEFORE
            tl.atomic_add(OUT + out_start + place * out_step, slopes, mask=active, sem="relaxed")
            place = -(above & BEFORE) + BEFORE
            tl.atomic_add(OUT + out_start + place * out_step, -slopes, mask=active, sem="relaxed")

    tl.debug_barrier()  # all threads write before one increments the counter, and read after it
    if tl.atomic_add(ARRIVED, 1, sem="acq_rel") == both - 1:
        tl.debug_barrier()
        tl.store(ARRIVED, 0)  # for the next launch
        # NaN if the input is not finite: a maximum or minimum may have ignored it.
        spoilt = sum_up(notes, bounds, size, size, REPORT, LABELLED, LABELLED, BLOCK)
        tl.store(BINARY, total_of(WORK, both, BLOCK) + spoilt if SOFT else spoilt)
        tl.store(CONTINUOUS, total_of(WORK + both, both, BLOCK) + spoilt if WINDOWED else spoilt)
