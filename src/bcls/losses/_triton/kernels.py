# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
"""Triton kernels that process tiles of a matrix; they are launched by :mod:`bcls.losses._triton.engine`.

Keys are explained in :mod:`bcls.losses.passes`. The same computations in plain torch are in
:mod:`bcls.losses._torch.engine`.
"""

import triton
import triton.language as tl

from bcls.losses.definitions import SAME

NEVER = tl.constexpr(-0x8000000000000000)
SAME_FROM = tl.constexpr(1 - SAME)
BEFORE = tl.constexpr(0x7FFFFFFF)  # also the bits of a float32 without the sign


@triton.jit
def bin_of(place, windows):
    """A position in units of the stride as an integer in [0, windows], for any label."""
    place = tl.where(place > 0, place, 0.0)
    return tl.where(place < windows, place, windows).to(tl.int32)


@triton.jit
def is_other(tile, number, j, row_ids, IDS, columns, HAS_IDS: tl.constexpr):
    """Cells of a tile whose image and caption belong to different images."""
    other = tile & (number[:, None] != j[None, :])
    if HAS_IDS:
        column_ids = tl.load(IDS + j, mask=j < columns, other=0)
        other = other & (row_ids[:, None] != column_ids[None, :])
    return other


@triton.jit
def raise_keys(
    scores, negative, positive, tile, i, number, j, ROW_KEYS, COLUMN_KEYS, row_plane, column_plane, columns, windows,
):  # fmt: skip
    """Raise the keys of a tile: negatives at the first window they count in, positives at the last one.

    The current keys are loaded first, so that only the few greater ones need an atomic; a stale value is harmless. All
    four loads come before the first atomic, since loads are not moved across atomics.
    """
    as_negative = tile & (negative < windows)
    as_positive = tile & (positive > 0)
    negative = tl.where(as_negative, negative, 0)
    positive = tl.where(as_positive, positive - 1, 0)
    rows_negative = ROW_KEYS + (i * windows + negative)
    rows_positive = ROW_KEYS + row_plane + (i * windows + positive)
    columns_negative = COLUMN_KEYS + (negative * columns + j)
    columns_positive = COLUMN_KEYS + column_plane + (positive * columns + j)
    standing_rows_negative = tl.load(rows_negative, mask=as_negative, other=0)
    standing_columns_negative = tl.load(columns_negative, mask=as_negative, other=0)
    standing_rows_positive = tl.load(rows_positive, mask=as_positive, other=0)
    standing_columns_positive = tl.load(columns_positive, mask=as_positive, other=0)
    codes = scores.to(tl.int32, bitcast=True)
    codes = tl.where(codes < 0, codes ^ BEFORE, codes)
    by_row = (-j + BEFORE).to(tl.int64)
    by_column = (-number + BEFORE).to(tl.int64)
    high = codes.to(tl.int64) << 32
    key = high | by_row
    tl.atomic_max(rows_negative, key, mask=as_negative & (key > standing_rows_negative), sem="relaxed")
    key = high | by_column
    tl.atomic_max(columns_negative, key, mask=as_negative & (key > standing_columns_negative), sem="relaxed")
    high = (~codes).to(tl.int64) << 32
    key = high | by_row
    tl.atomic_max(rows_positive, key, mask=as_positive & (key > standing_rows_positive), sem="relaxed")
    key = high | by_column
    tl.atomic_max(columns_positive, key, mask=as_positive & (key > standing_columns_positive), sem="relaxed")


@triton.jit
def mine_tiles(
    S, R, EDGES, ROW_KEYS, COLUMN_KEYS,
    rows, columns, first, s_row, s_column, r_row, r_column, row_plane, column_plane, windows, span,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Keys of a block of rows and a span of columns; each tile is used for both directions."""
    block = tl.program_id(0)
    # The tile is one-dimensional: in two dimensions Triton may choose the layout in which a warp loads a column.
    # With the hint a thread loads single cells, in the layout of the keys, and a warp loads 32 neighbouring ones.
    cell = tl.arange(0, HEIGHT * WIDTH)
    i = block * HEIGHT + cell // WIDTH
    column = tl.multiple_of(cell % WIDTH, [1])
    in_rows = i < rows
    number = first + i
    s_rows = S + i.to(tl.int64) * s_row
    r_rows = R + i.to(tl.int64) * r_row
    steps = span // WIDTH
    start = tl.program_id(1) * span
    # Blocks of rows start at different columns, so that they do not raise the keys of the same columns at once.
    j = start + (block % steps) * WIDTH + column
    tile = in_rows & (j < columns)
    scores = tl.load(s_rows + j.to(tl.int64) * s_column, mask=tile, other=0.0)
    labels = tl.load(r_rows + j.to(tl.int64) * r_column, mask=tile, other=0.0)
    for step in range(steps):
        # Load the next tile while this one is processed.
        next_j = start + ((step + 1 + block) % steps) * WIDTH + column
        next_tile = in_rows & (next_j < columns * (step + 1 < steps))
        next_scores = tl.load(s_rows + next_j.to(tl.int64) * s_column, mask=next_tile, other=0.0)
        next_labels = tl.load(r_rows + next_j.to(tl.int64) * r_column, mask=next_tile, other=0.0)
        place = (labels.to(tl.float64) + tl.load(EDGES)) * tl.load(EDGES + 1)
        negative = bin_of(place, windows)
        positive = bin_of(place - tl.load(EDGES + 2), windows)
        raise_keys(
            scores.to(tl.float32), negative, positive, tile, i, number, j, ROW_KEYS, COLUMN_KEYS, row_plane,
            column_plane, columns, windows,
        )  # fmt: skip
        j = next_j
        tile = next_tile
        scores = next_scores
        labels = next_labels


@triton.jit
def scatter_pairs(PICKS, SHARES, WEIGHTS, UPSTREAM, OUT, size, windows, number, BLOCK: tl.constexpr):
    """Add the slopes of the hard pairs to a gradient; ``number`` pairs, those of row anchors first."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = entry < number
    anchor = entry // windows
    negative = tl.load(PICKS + entry, mask=mask, other=-1).to(tl.int64)
    positive = tl.load(PICKS + number + entry, mask=mask, other=-1).to(tl.int64)
    active = mask & (negative >= 0)
    weight = tl.load(WEIGHTS + entry % windows, mask=active, other=0.0)
    slope = tl.load(SHARES + anchor, mask=active, other=0.0) * weight * tl.load(UPSTREAM).to(tl.float32)
    by_row = anchor < size
    at_negative = tl.where(by_row, anchor * size + negative, negative * size + anchor - size)
    at_positive = tl.where(by_row, anchor * size + positive, positive * size + anchor - size)
    tl.atomic_add(OUT + at_negative, slope, mask=active, sem="relaxed")
    tl.atomic_add(OUT + at_positive, -slope, mask=active, sem="relaxed")


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
    """Soft sums of a block of rows and a span of columns; each tile is used for both directions.

    Rows are summed cell by cell, each cell relative to its own greatest exponent, and merged once at the end, so that
    threads synchronise only for the sums of the columns.
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
def soft_slopes(
    S, R, IDS, ROW_LEVELS, COLUMN_LEVELS, UPSTREAM, OUT,
    rows, columns, first, s_row, s_column, r_row, r_column, sharpness, scale,
    LABELLED: tl.constexpr, HAS_IDS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradient of the binary term: softmax weights, minus one for each matching pair with an active hinge."""
    i = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    j = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    tile = (i < rows)[:, None] & (j < columns)[None, :]
    by_row = tl.load(ROW_LEVELS + i, mask=i < rows, other=float("inf"))
    by_column = tl.load(COLUMN_LEVELS + j, mask=j < columns, other=float("inf"))
    number = first + i
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
    slopes = tl.where(allowed, slopes, tl.where(number[:, None] == j[None, :], -active, 0.0))
    upstream = tl.load(UPSTREAM).to(tl.float32) * scale
    tl.store(OUT + wide_i[:, None] * columns + j[None, :], slopes * upstream, mask=tile)


@triton.jit
def larger(a, b):
    """Operator of a running maximum."""
    return tl.maximum(a, b)


@triton.jit
def score_of(codes):
    """The float32 of a code."""
    codes = codes.to(tl.int32)
    return tl.where(codes < 0, codes ^ BEFORE, codes).to(tl.float32, bitcast=True)


@triton.jit
def soft_hinges(
    SUMS, parts, OWN, own_stride, VALUES, LEVELS, a, anchors, sharpness, margin, scale,
    AVERAGE: tl.constexpr, PARTS: tl.constexpr, ANCHORS: tl.constexpr,
):  # fmt: skip
    """Merges the parts of the soft sums of a block of anchors and writes their hinges."""
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
    # NaN counts as active; a maximum may ignore it, a sum does not.
    active = ((best != float("-inf")) & ((hinge > 0) | (hinge != hinge))) | (total != total)
    tl.store(VALUES + a, tl.where(active, hinge * scale, 0.0), mask=here)
    tl.store(LEVELS + a, tl.where(active, level, float("inf")), mask=here)


@triton.jit
def window_hinges(
    KEYS, plane, anchor_stride, window_stride, WEIGHTS, VALUES, PICKS, picks_plane, SHARES,
    a, anchors, windows, scale, VALID_ONLY: tl.constexpr, WINDOWS: tl.constexpr,
):  # fmt: skip
    """Running extrema over the bins of a block of anchors; writes their hinges and hard pairs."""
    here = a < anchors
    window = tl.arange(0, WINDOWS)
    inside = here[:, None] & (window < windows)[None, :]
    places = KEYS + a.to(tl.int64)[:, None] * anchor_stride + window.to(tl.int64)[None, :] * window_stride
    negative = tl.associative_scan(tl.load(places, mask=inside, other=NEVER), 1, larger)
    positive = tl.associative_scan(tl.load(places + plane, mask=inside, other=NEVER), 1, larger, reverse=True)
    valid = inside & (negative != NEVER) & (positive != NEVER)
    weights = tl.load(WEIGHTS + window, mask=window < windows, other=0.0)
    gaps = score_of(negative >> 32) - score_of(~(positive >> 32))
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
    ROW_KEYS, COLUMN_KEYS, WEIGHTS, ROW_SUMS, COLUMN_SUMS, ROW_OWN, COLUMN_OWN,
    VALUES, LEVELS, PICKS, SHARES,
    rows, columns, row_programs, row_plane, column_plane, picks_plane, row_parts, column_parts,
    row_own, column_own, windows, sharpness, margin, soft_scale, window_scale,
    SOFT: tl.constexpr, AVERAGE: tl.constexpr, WINDOWED: tl.constexpr, VALID_ONLY: tl.constexpr,
    ANCHORS: tl.constexpr, WINDOWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Hinges of all anchors, both directions: the first ``row_programs`` programs process the row anchors.

    The values of a term that is not computed stay as they are.
    """
    program = tl.program_id(0)
    both = rows + columns
    if program < row_programs:
        a = program * ANCHORS + tl.arange(0, ANCHORS)
        if SOFT:
            soft_hinges(
                ROW_SUMS, row_parts, ROW_OWN, row_own, VALUES, LEVELS, a, rows, sharpness, margin, soft_scale,
                AVERAGE, PARTS, ANCHORS,
            )  # fmt: skip
        if WINDOWED:
            window_hinges(
                ROW_KEYS, row_plane, windows, 1, WEIGHTS, VALUES + both, PICKS, picks_plane, SHARES,
                a, rows, windows, window_scale, VALID_ONLY, WINDOWS,
            )  # fmt: skip
    else:
        a = (program - row_programs) * ANCHORS + tl.arange(0, ANCHORS)
        if SOFT:
            soft_hinges(
                COLUMN_SUMS, column_parts, COLUMN_OWN, column_own, VALUES + rows, LEVELS + rows, a, columns,
                sharpness, margin, soft_scale, AVERAGE, PARTS, ANCHORS,
            )  # fmt: skip
        if WINDOWED:
            window_hinges(
                COLUMN_KEYS, column_plane, 1, columns, WEIGHTS, VALUES + both + rows,
                PICKS + tl.cast(rows, tl.int64) * windows, picks_plane, SHARES + rows,
                a, columns, windows, window_scale, VALID_ONLY, WINDOWS,
            )  # fmt: skip


@triton.jit
def compare_pairs(
    S, R, FACTOR, SLOPES, SUMS, size, s_row, s_column, r_row, r_column, anchor_stride, candidate_stride, alpha, margin,
    ADD: tl.constexpr, OURS: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """Hinges of one anchor's pairs (x above y) and slopes of a block of x: too high counts 1, too low counts -1.

    Rows are anchors. With ``ADD`` the slopes are added to the existing ones.
    """
    anchor = tl.program_id(0).to(tl.int64)
    x = tl.program_id(1) * OURS + tl.arange(0, OURS)
    scores = S + anchor * s_row
    labels = R + anchor * r_row
    score = tl.load(scores + x.to(tl.int64) * s_column, mask=x < size, other=0.0).to(tl.float32)
    label = tl.load(labels + x.to(tl.int64) * r_column, mask=x < size, other=0.0)
    reach = label + alpha
    raised = score + margin
    slopes = tl.zeros([OURS, OTHERS], tl.int32)
    hinges = tl.zeros([OURS, OTHERS], tl.float32)
    for start in range(0, size, OTHERS):
        y = start + tl.arange(0, OTHERS)
        # Beyond the end both comparisons are false.
        other = tl.load(scores + y.to(tl.int64) * s_column, mask=y < size, other=float("inf")).to(tl.float32)
        floor = tl.load(labels + y.to(tl.int64) * r_column, mask=y < size, other=float("inf"))
        above = other + margin
        low = (label[:, None] > (floor + alpha)[None, :]) & (score[:, None] < above[None, :])
        high = (floor[None, :] > reach[:, None]) & (other[None, :] < raised[:, None])
        slopes += high.to(tl.int32) - low.to(tl.int32)
        hinges += tl.where(low, above[None, :] - score[:, None], 0.0)
    factor = tl.load(FACTOR)
    slope = tl.sum(slopes, 1).to(tl.float32) * factor
    places = SLOPES + anchor * anchor_stride + x.to(tl.int64) * candidate_stride
    if ADD:
        slope += tl.load(places, mask=x < size, other=0.0)
    tl.store(places, slope, mask=x < size)
    total = tl.sum(tl.where(x < size, tl.sum(hinges, 1), 0.0), 0)
    tl.store(SUMS + anchor * tl.num_programs(1) + tl.program_id(1), total * factor)
