# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
"""Triton kernels of the four passes; the launches are in :mod:`bcls.kernels._triton_engine`.

Keys are explained in :mod:`bcls.kernels._parts`. A kernel is read with its plain form in
:mod:`bcls.kernels._torch_engine` beside it.
"""

import triton
import triton.language as tl

NEVER = tl.constexpr(-0x8000000000000000)
BEFORE = tl.constexpr(0x7FFFFFFF)  # also the bits of a float32 without the sign
SAME_FROM = tl.constexpr(1 - 1e-4)


@triton.jit
def raise_to(places, keys, wanted):
    """Raise stored keys. Few keys get past the look beforehand, so few atomics are left; it may be out of date."""
    standing = tl.load(places, mask=wanted, other=0)
    tl.atomic_max(places, keys, mask=wanted & (keys > standing), sem="relaxed")


@triton.jit
def bin_of(place, windows):
    """A place on the ladder of windows as a whole number in [0, windows], whatever the label was."""
    place = tl.where(place > 0, place, 0.0)
    return tl.where(place < windows, place, windows).to(tl.int32)


@triton.jit
def is_negative(tile, number, j, row_ids, IDS, labels, columns, LABELLED: tl.constexpr, HAS_IDS: tl.constexpr):
    """Which cells of a tile the binary half pushes apart."""
    allowed = tile & (number[:, None] != j[None, :])
    if LABELLED:
        allowed = allowed & (labels < SAME_FROM)
    if HAS_IDS:
        column_ids = tl.load(IDS + j, mask=j < columns, other=0)
        allowed = allowed & (row_ids[:, None] != column_ids[None, :])
    return allowed


@triton.jit
def rungs_below(labels, EDGES, windows):
    """How many thresholds a label reaches."""
    reached = tl.zeros_like(labels).to(tl.int32)
    for window in range(windows):
        reached += (labels >= tl.load(EDGES + window)).to(tl.int32)
    return reached


@triton.jit
def raise_keys(
    scores, negative, positive, as_negative, tile, i, number, j, ROW_KEYS, COLUMN_KEYS, row_plane, column_plane,
    columns, windows,
):  # fmt: skip
    """Raise the keys of a tile: negatives at the first window they count in, positives at the last one."""
    as_negative = as_negative & (negative < windows)
    as_positive = tile & (positive > 0)
    negative = tl.where(as_negative, negative, 0)
    positive = tl.where(as_positive, positive - 1, 0)
    codes = scores.to(tl.int32, bitcast=True)
    codes = tl.where(codes < 0, codes ^ BEFORE, codes)
    by_row = (-j + BEFORE).to(tl.int64)[None, :]
    by_column = (-number + BEFORE).to(tl.int64)[:, None]
    row_places = ROW_KEYS + i.to(tl.int64)[:, None] * windows
    column_places = COLUMN_KEYS + j.to(tl.int64)[None, :]
    high = codes.to(tl.int64) << 32
    raise_to(row_places + negative, high | by_row, as_negative)
    raise_to(column_places + negative.to(tl.int64) * columns, high | by_column, as_negative)
    high = (~codes).to(tl.int64) << 32
    raise_to(row_places + row_plane + positive, high | by_row, as_positive)
    raise_to(column_places + column_plane + positive.to(tl.int64) * columns, high | by_column, as_positive)


@triton.jit
def store_column_sums(SUMS, block, j, columns, allowed, powers, AVERAGE: tl.constexpr):
    """Soft sums over the rows of a tile."""
    top = tl.max(powers, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    out = SUMS + block.to(tl.int64) * columns + j
    plane = tl.num_programs(0).to(tl.int64) * columns
    tl.store(out, top, mask=j < columns)
    tl.store(out + plane, tl.sum(tl.exp2(powers - base[None, :]), 0), mask=j < columns)
    if AVERAGE:
        tl.store(out + 2 * plane, tl.sum(allowed.to(tl.float32), 0), mask=j < columns)


@triton.jit
def mine_tiles(  # noqa: C901
    S, R, IDS, EDGES, ROW_KEYS, COLUMN_KEYS, ROW_SUMS, COLUMN_SUMS,
    rows, columns, first, s_row, s_column, r_row, r_column, row_plane, column_plane, windows, span, sharpness,
    LABELLED: tl.constexpr, HAS_IDS: tl.constexpr, SOFT: tl.constexpr, AVERAGE: tl.constexpr,
    SLIDING: tl.constexpr, THRESHOLDS: tl.constexpr, EXCLUDE_SAME: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Keys and soft sums of a block of rows and a span of columns; a tile serves both directions."""
    block = tl.program_id(0)
    split = tl.program_id(1)
    i = block * HEIGHT + tl.arange(0, HEIGHT)
    in_rows = i < rows
    number = first + i
    wide_i = i.to(tl.int64)
    row_ids = i
    if HAS_IDS:
        row_ids = tl.load(IDS + number, mask=in_rows, other=0)
    if SLIDING:
        lift = tl.load(EDGES)
        per_stride = tl.load(EDGES + 1)
        width = tl.load(EDGES + 2)
    best = tl.full([HEIGHT], float("-inf"), tl.float32)
    total = tl.zeros([HEIGHT], tl.float32)
    count = tl.zeros([HEIGHT], tl.float32)
    steps = span // WIDTH
    for step in range(steps):
        # Blocks of rows start at different columns, so that they do not raise the same columns' keys at once.
        j = split * span + ((step + block) % steps) * WIDTH + tl.arange(0, WIDTH)
        wide_j = j.to(tl.int64)
        tile = in_rows[:, None] & (j < columns)[None, :]
        scores = tl.load(S + wide_i[:, None] * s_row + wide_j[None, :] * s_column, mask=tile, other=0.0).to(tl.float32)
        labels = scores
        if LABELLED:
            labels = tl.load(R + wide_i[:, None] * r_row + wide_j[None, :] * r_column, mask=tile, other=0.0)
            if THRESHOLDS:
                labels = labels.to(tl.float32)

        if SLIDING or THRESHOLDS:
            as_negative = tile
            if EXCLUDE_SAME:
                as_negative = is_negative(tile, number, j, row_ids, IDS, labels, columns, False, HAS_IDS)
            if SLIDING:
                place = (labels.to(tl.float64) + lift) * per_stride
                negative = bin_of(place, windows)
                positive = bin_of(place - width, windows)
            else:
                negative = rungs_below(labels, EDGES, windows)
                positive = negative
            raise_keys(
                scores, negative, positive, as_negative, tile, i, number, j, ROW_KEYS, COLUMN_KEYS,
                row_plane, column_plane, columns, windows,
            )  # fmt: skip

        if SOFT:
            allowed = is_negative(tile, number, j, row_ids, IDS, labels, columns, LABELLED, HAS_IDS)
            powers = tl.where(allowed, scores * sharpness, float("-inf"))
            top = tl.maximum(best, tl.max(powers, 1))
            base = tl.where(top == float("-inf"), 0.0, top)
            total = total * tl.exp2(best - base) + tl.sum(tl.exp2(powers - base[:, None]), 1)
            best = top
            if AVERAGE:
                count += tl.sum(allowed.to(tl.float32), 1)
            store_column_sums(COLUMN_SUMS, block, j, columns, allowed, powers, AVERAGE)
    if SOFT:
        out = ROW_SUMS + split * rows + i
        plane = tl.num_programs(1) * rows
        tl.store(out, best, mask=in_rows)
        tl.store(out + plane, total, mask=in_rows)
        if AVERAGE:
            tl.store(out + 2 * plane, count, mask=in_rows)


@triton.jit
def soft_slopes(
    S, R, IDS, ROW_LEVELS, COLUMN_LEVELS, UPSTREAM, OUT,
    rows, columns, first, s_row, s_column, r_row, r_column, sharpness, scale,
    LABELLED: tl.constexpr, HAS_IDS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradient of the binary half, written once."""
    i = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    j = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    number = first + i
    in_rows = i < rows
    wide_i = i.to(tl.int64)
    wide_j = j.to(tl.int64)
    tile = in_rows[:, None] & (j < columns)[None, :]
    row_ids = i
    if HAS_IDS:
        row_ids = tl.load(IDS + number, mask=in_rows, other=0)
    scores = tl.load(S + wide_i[:, None] * s_row + wide_j[None, :] * s_column, mask=tile, other=0.0).to(tl.float32)
    labels = scores
    if LABELLED:
        labels = tl.load(R + wide_i[:, None] * r_row + wide_j[None, :] * r_column, mask=tile, other=0.0)
    allowed = is_negative(tile, number, j, row_ids, IDS, labels, columns, LABELLED, HAS_IDS)
    by_row = tl.load(ROW_LEVELS + i, mask=in_rows, other=float("inf"))
    by_column = tl.load(COLUMN_LEVELS + j, mask=j < columns, other=float("inf"))
    powers = scores * sharpness
    slopes = tl.exp2(powers - by_row[:, None]) + tl.exp2(powers - by_column[None, :])
    active = (by_row[:, None] < float("inf")).to(tl.float32) + (by_column[None, :] < float("inf")).to(tl.float32)
    slopes = tl.where(allowed, slopes, tl.where(number[:, None] == j[None, :], -active, 0.0))
    upstream = tl.load(UPSTREAM).to(tl.float32) * scale
    tl.store(OUT + wide_i[:, None] * columns + wide_j[None, :], slopes * upstream, mask=tile)


@triton.jit
def scatter_pairs(
    PICKS, SHARES, WEIGHTS, UPSTREAM, OUT, size, windows, number, BLOCK: tl.constexpr
):  # fmt: skip
    """Add the hard pairs' slopes to a whole gradient; ``number`` pairs, those of row anchors first."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = entry < number
    anchor = entry // windows
    negative = tl.load(PICKS + entry, mask=mask, other=-1).to(tl.int64)
    positive = tl.load(PICKS + number + entry, mask=mask, other=-1).to(tl.int64)
    active = mask & (negative >= 0)
    slope = tl.load(SHARES + anchor, mask=active, other=0.0) * tl.load(
        WEIGHTS + entry % windows, mask=active, other=0.0
    )
    slope = slope * tl.load(UPSTREAM).to(tl.float32)
    by_row = anchor < size
    at_negative = tl.where(by_row, anchor * size + negative, negative * size + anchor - size)
    at_positive = tl.where(by_row, anchor * size + positive, positive * size + anchor - size)
    tl.atomic_add(OUT + at_negative, slope, mask=active, sem="relaxed")
    tl.atomic_add(OUT + at_positive, -slope, mask=active, sem="relaxed")
