# ruff: noqa: ANN001, ANN202, N803
# mypy: ignore-errors
"""Triton kernel that compares all pairs of candidates of an anchor, without the cube of comparisons in memory."""

import triton
import triton.language as tl


@triton.jit
def compare_pairs(
    S, R, FACTOR, SLOPES, SUMS, size, s_row, s_column, r_row, r_column, anchor_stride, candidate_stride, alpha, margin,
    ADD: tl.constexpr, OURS: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """Hinges of one anchor's pairs (x above y) and slopes of a block of x: too high counts 1, too low counts -1.

    Rows are anchors. With ``ADD`` the slopes are added to what is there.
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
        # Beyond the end neither comparison holds both ways.
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
