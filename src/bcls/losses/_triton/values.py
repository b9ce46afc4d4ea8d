# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
"""Triton kernel that checks the values of matrices and reports to the host; see :mod:`bcls.losses.definitions`.

Each program records the first bad cell it finds and the range of its labels; the last program writes the report. A cell
is recorded as four times its index, counted along rows, plus its index in ``validation.KINDS``.
"""

import triton
import triton.language as tl

from bcls.losses.definitions import ROUNDING

NOWHERE = tl.constexpr(0x7FFFFFFFFFFFFFFF)
LOWEST = tl.constexpr(-1 - ROUNDING)
HIGHEST = tl.constexpr(1 + ROUNDING)


@triton.jit
def bad_cells(values, cells, inside):
    """The record of each cell: ``NOWHERE`` for a finite number."""
    nan = values != values
    kind = tl.where(nan, 0, tl.where(values > 0, 1, 2))
    return tl.where(inside & (nan | (tl.abs(values) == float("inf"))), cells * 4 + kind, NOWHERE)


@triton.jit
def nothing_of(values):
    """0 for a finite number of any precision, else NaN."""
    if values.dtype != tl.float64:
        values = values.to(tl.float32)
    return (values * 0.0).to(tl.float32)


@triton.jit
def sum_up(NOTES, BOUNDS, number, columns, REPORT, LABELLED: tl.constexpr, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """Report what all programs have recorded; returns NaN if a value is not finite, else 0.

    ``NOTES`` are first bad cells of the similarities, then of the labels, one for each of ``number`` programs;
    ``BOUNDS`` are lowest labels, then highest ones. The loads bypass the first cache, which may hold older values.
    """
    first = tl.full([BLOCK], NOWHERE, tl.int64)
    first_label = tl.full([BLOCK], NOWHERE, tl.int64)
    low = tl.full([BLOCK], 0.0, tl.float32)
    high = tl.full([BLOCK], 0.0, tl.float32)
    for start in range(0, number, BLOCK):
        place = tl.max_contiguous(start + tl.arange(0, BLOCK), 1)
        here = place < number
        first = tl.minimum(first, tl.load(NOTES + place, mask=here, other=NOWHERE, cache_modifier=".cg"))
        if LABELLED:
            notes = tl.load(NOTES + number + place, mask=here, other=NOWHERE, cache_modifier=".cg")
            first_label = tl.minimum(first_label, notes)
            lows = tl.load(BOUNDS + place, mask=here, other=float("inf"), cache_modifier=".cg")
            highs = tl.load(BOUNDS + number + place, mask=here, other=-float("inf"), cache_modifier=".cg")
            # The first block has at least one program, so the initial zeros above do not remain.
            low = tl.where(start == 0, lows, tl.minimum(low, lows))
            high = tl.where(start == 0, highs, tl.maximum(high, highs))
    cell = tl.min(first, 0)
    cell_label = tl.min(first_label, 0)
    odd = (cell != NOWHERE) | (cell_label != NOWHERE)
    if REPORT is not None:
        lowest = tl.min(low, 0)
        highest = tl.max(high, 0)
        refused = odd
        if BOUNDED:
            refused = refused | (lowest < LOWEST) | (highest > HIGHEST)
        if refused:
            tl.store(REPORT + 1, tl.where(cell == NOWHERE, -1, cell).to(tl.float64))
            tl.store(REPORT + 2, tl.where(cell_label == NOWHERE, -1, cell_label).to(tl.float64))
            tl.store(REPORT + 3, lowest.to(tl.float64))
            tl.store(REPORT + 4, highest.to(tl.float64))
            tl.store(REPORT + 5, tl.cast(columns, tl.float64))  # a 1 may be a constant, without methods
            tl.store(REPORT, 1.0)
    return tl.where(odd, float("nan"), 0.0)


@triton.jit
def first_bad_cells(
    S, R, program, programs, rows, columns, s_row, s_column, r_row, r_column,
    LABELLED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The first bad cells among the rows of a program."""
    first = tl.full([WIDTH], NOWHERE, tl.int64)
    first_label = tl.full([WIDTH], NOWHERE, tl.int64)
    for row in range(program, rows, programs):
        wide = tl.cast(row, tl.int64)
        for start in range(0, columns, WIDTH):
            j = (start + tl.arange(0, WIDTH)).to(tl.int64)
            inside = j < columns
            cells = wide * columns + j
            scores = tl.load(S + wide * s_row + j * s_column, mask=inside, other=0.0)
            first = tl.minimum(first, bad_cells(scores, cells, inside))
            if LABELLED:
                labels = tl.load(R + wide * r_row + j * r_column, mask=inside, other=0.0)
                first_label = tl.minimum(first_label, bad_cells(labels, cells, inside))
    return tl.min(first, 0), tl.min(first_label, 0)


@triton.jit
def check_matrices(
    S, R, NOTES, ARRIVED, REPORT, rows, columns, s_row, s_column, r_row, r_column,
    LABELLED: tl.constexpr, BOUNDED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Check two matrices, every program some of their rows; a second pass locates bad cells.

    ``NOTES`` are two int64 for each program, then two float32 for each, see :func:`sum_up`.
    """
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    bounds = (NOTES + 2 * programs).to(tl.pointer_type(tl.float32), bitcast=True)
    odd = tl.zeros([WIDTH], tl.float32)  # NaN once a number is not finite
    low = tl.full([WIDTH], float("inf"), tl.float32)
    high = tl.full([WIDTH], -float("inf"), tl.float32)
    for row in range(program, rows, programs):
        wide = tl.cast(row, tl.int64)
        for start in range(0, columns, WIDTH):
            j = (start + tl.arange(0, WIDTH)).to(tl.int64)
            inside = j < columns
            odd += nothing_of(tl.load(S + wide * s_row + j * s_column, mask=inside, other=0.0))
            if LABELLED:
                labels = tl.load(R + wide * r_row + j * r_column, mask=inside, other=0.0)
                odd += nothing_of(labels)
                labels = labels.to(tl.float32)
                low = tl.minimum(low, tl.where(inside, labels, float("inf")))
                high = tl.maximum(high, tl.where(inside, labels, -float("inf")))
    found = tl.sum(odd, 0)
    tl.store(NOTES + program, NOWHERE)
    tl.store(NOTES + programs + program, NOWHERE)
    if found != found:
        first, first_label = first_bad_cells(  # narrow, so that it needs no more registers than the first pass
            S, R, program, programs, rows, columns, s_row, s_column, r_row, r_column, LABELLED, WIDTH // 4
        )
        tl.store(NOTES + program, first)
        tl.store(NOTES + programs + program, first_label)
    if LABELLED:
        tl.store(bounds + program, tl.min(low, 0))
        tl.store(bounds + programs + program, tl.max(high, 0))
    tl.debug_barrier()  # all threads write before one increments the counter, and read after it
    if tl.atomic_add(ARRIVED, 1, sem="acq_rel") == programs - 1:
        tl.debug_barrier()
        tl.store(ARRIVED, 0)  # for the next launch
        sum_up(NOTES, bounds, programs, columns, REPORT, LABELLED, BOUNDED, BLOCK)
