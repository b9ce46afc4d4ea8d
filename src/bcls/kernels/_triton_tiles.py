# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
"""Triton kernels of the continuous half; the launches are in :mod:`bcls.kernels._triton_engine`.

Keys are explained in :mod:`bcls.kernels._parts`. A kernel is read with its plain form in
:mod:`bcls.kernels._torch_engine` beside it.
"""

import triton
import triton.language as tl

NEVER = tl.constexpr(-0x8000000000000000)
BEFORE = tl.constexpr(0x7FFFFFFF)  # also the bits of a float32 without the sign


@triton.jit
def bin_of(place, windows):
    """A place on the ladder of windows as a whole number in [0, windows], whatever the label was."""
    place = tl.where(place > 0, place, 0.0)
    return tl.where(place < windows, place, windows).to(tl.int32)


@triton.jit
def rungs_below(labels, EDGES, windows):
    """How many thresholds a label reaches."""
    reached = tl.zeros_like(labels).to(tl.int32)
    for window in range(windows):
        reached += (labels >= tl.load(EDGES + window)).to(tl.int32)
    return reached


@triton.jit
def is_other(tile, number, j, row_ids, IDS, columns, HAS_IDS: tl.constexpr):
    """Which cells of a tile are of two images."""
    other = tile & (number[:, None] != j[None, :])
    if HAS_IDS:
        column_ids = tl.load(IDS + j, mask=j < columns, other=0)
        other = other & (row_ids[:, None] != column_ids[None, :])
    return other


@triton.jit
def raise_keys(
    scores, negative, positive, as_negative, tile, i, number, j, ROW_KEYS, COLUMN_KEYS, row_plane, column_plane,
    columns, windows,
):  # fmt: skip
    """Raise the keys of a tile: negatives at the first window they count in, positives at the last one.

    Few keys get past the look beforehand, so few atomics are left; it may be out of date. All four looks come before
    the first atomic, which loads do not pass.
    """
    as_negative = as_negative & (negative < windows)
    as_positive = tile & (positive > 0)
    negative = tl.where(as_negative, negative, 0)
    positive = tl.where(as_positive, positive - 1, 0)
    rows_negative = ROW_KEYS + (i[:, None] * windows + negative)
    rows_positive = ROW_KEYS + row_plane + (i[:, None] * windows + positive)
    columns_negative = COLUMN_KEYS + (negative * columns + j[None, :])
    columns_positive = COLUMN_KEYS + column_plane + (positive * columns + j[None, :])
    standing_rows_negative = tl.load(rows_negative, mask=as_negative, other=0)
    standing_columns_negative = tl.load(columns_negative, mask=as_negative, other=0)
    standing_rows_positive = tl.load(rows_positive, mask=as_positive, other=0)
    standing_columns_positive = tl.load(columns_positive, mask=as_positive, other=0)
    codes = scores.to(tl.int32, bitcast=True)
    codes = tl.where(codes < 0, codes ^ BEFORE, codes)
    by_row = (-j + BEFORE).to(tl.int64)[None, :]
    by_column = (-number + BEFORE).to(tl.int64)[:, None]
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


# Strides that are not known to be 1 keep cells in the layout that gathers have: moving keys costs more than wide loads.
@triton.jit(do_not_specialize=["s_column", "r_column"])
def mine_tiles(
    S, R, IDS, EDGES, ROW_KEYS, COLUMN_KEYS,
    rows, columns, first, s_row, s_column, r_row, r_column, row_plane, column_plane, windows, span,
    HAS_IDS: tl.constexpr, SLIDING: tl.constexpr, EXCLUDE_SAME: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Keys of a block of rows and a span of columns; a tile serves both directions."""
    block = tl.program_id(0)
    i = block * HEIGHT + tl.arange(0, HEIGHT)
    in_rows = i < rows
    number = first + i
    row_ids = i
    if HAS_IDS:
        row_ids = tl.load(IDS + number, mask=in_rows, other=0)
    s_rows = S + i.to(tl.int64)[:, None] * s_row
    r_rows = R + i.to(tl.int64)[:, None] * r_row
    steps = span // WIDTH
    start = tl.program_id(1) * span
    # Blocks of rows start at different columns, so that they do not raise the same columns' keys at once.
    j = start + (block % steps) * WIDTH + tl.arange(0, WIDTH)
    tile = in_rows[:, None] & (j < columns)[None, :]
    scores = tl.load(s_rows + j.to(tl.int64)[None, :] * s_column, mask=tile, other=0.0)
    labels = tl.load(r_rows + j.to(tl.int64)[None, :] * r_column, mask=tile, other=0.0)
    for step in range(steps):
        # The next tile is on its way while this one is worked on.
        next_j = start + ((step + 1 + block) % steps) * WIDTH + tl.arange(0, WIDTH)
        next_tile = in_rows[:, None] & (next_j < columns * (step + 1 < steps))[None, :]
        next_scores = tl.load(s_rows + next_j.to(tl.int64)[None, :] * s_column, mask=next_tile, other=0.0)
        next_labels = tl.load(r_rows + next_j.to(tl.int64)[None, :] * r_column, mask=next_tile, other=0.0)
        as_negative = tile
        if EXCLUDE_SAME:
            as_negative = is_other(tile, number, j, row_ids, IDS, columns, HAS_IDS)
        if SLIDING:
            place = (labels.to(tl.float64) + tl.load(EDGES)) * tl.load(EDGES + 1)
            negative = bin_of(place, windows)
            positive = bin_of(place - tl.load(EDGES + 2), windows)
        else:
            negative = rungs_below(labels.to(tl.float32), EDGES, windows)
            positive = negative
        raise_keys(
            scores.to(tl.float32), negative, positive, as_negative, tile, i, number, j, ROW_KEYS, COLUMN_KEYS,
            row_plane, column_plane, columns, windows,
        )  # fmt: skip
        j = next_j
        tile = next_tile
        scores = next_scores
        labels = next_labels


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
