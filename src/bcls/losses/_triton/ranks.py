# ruff: noqa: ANN001, ANN202, N803, N806
# mypy: ignore-errors
"""Dense Kendall loss by ranks, O(B^2 log B): see :mod:`bcls.losses._torch.ranks` for the counts.

For each anchor: sort the labels, find the bounds of each candidate in that order, sort the scores, and go through the
candidates in the order of their scores, with one bit for each label rank that has been passed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bcls.losses._torch.ranks import codes
from bcls.losses._triton.kernels import BEFORE, score_of
from bcls.losses.passes import LATEST

LAST = tl.constexpr(0x7FFFFFFFFFFFFFFF)
IS_SCORE = tl.constexpr(1 << 30)  # set in the key of a score, not in that of a score plus margin
#: Longest rows that one program sorts, and keys of each of its threads; torch sorts longer ones (6.8 instead of 10.3 ms
#: for the loss at 4,096 on an H200). More keys in a thread need more registers, and fewer exchanges between threads.
SORTED_UP_TO, _KEYS = 2048, 32
#: Cells of the anchors that are ranked at once: about 30 bytes each.
_CELLS = 1 << 24
#: Candidates of a program of the kernels that need no order.
_WIDTH = 512
#: Rows of fewer candidates have both bounds of a candidate in 32 bits.
_PACKED_BELOW = 1 << 16
#: Candidates of a step of the count, and warps of its programs: one warp waits for no other.
_STEP, _WARPS = 32, 1


@triton.jit
def code_of(value):
    """Integer in the order of the numbers, equal for -0.0 and 0.0."""
    code = (value + 0.0).to(tl.int32, bitcast=True)
    return tl.where(code < 0, code ^ BEFORE, code)


@triton.jit
def ones_in(mask):
    """Number of bits set in each int32."""
    mask = mask - ((mask >> 1) & 0x55555555)
    mask = (mask & 0x33333333) + ((mask >> 2) & 0x33333333)
    mask = (mask + (mask >> 4)) & 0x0F0F0F0F
    return ((mask * 0x01010101) >> 24) & 0xFF


@triton.jit
def sort_rows(VALUES, PLACES, KEYS, size, margin, HAS_PLACES: tl.constexpr, TWICE: tl.constexpr, SIZE: tl.constexpr):
    """Ascending keys of a row: the code of a value, and its position or its entry of ``PLACES`` in the lower bits.

    With ``TWICE`` each value has two keys, the first one with the margin added.
    """
    row = tl.program_id(0).to(tl.int64)
    x = tl.arange(0, SIZE)
    length = size
    column = x
    if TWICE:
        length = 2 * size
        column = tl.where(x < size, x, x - size)
    value = tl.load(VALUES + row * size + column, mask=x < length, other=0.0)
    low = column
    if HAS_PLACES:
        low = tl.load(PLACES + row * size + column, mask=x < length, other=0)
    if TWICE:
        raised = (value.to(tl.float32) + margin).to(VALUES.dtype.element_ty)
        value = tl.where(x < size, raised, value)
        low = tl.where(x < size, low, low | IS_SCORE)
    key = (code_of(value.to(tl.float32)).to(tl.int64) << 32) | low.to(tl.int64)
    key = tl.sort(tl.where(x < length, key, LAST))
    tl.store(KEYS + row * length + x, key, mask=x < length)


@triton.jit
def place_of(length, WIDTH: tl.constexpr):
    """Row and block of a program; the blocks of a row run together, so that the row stays in the cache."""
    blocks = tl.cdiv(length, WIDTH)
    return (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks


@triton.jit
def find_bounds(KEYS, PLACES, BOUNDS, size, steps, alpha, HALF: tl.constexpr, WIDTH: tl.constexpr):
    """For the sorted labels of a row: rank of each candidate, and how many labels it must not lie below, and above.

    The first bound is in the upper half of a number of ``BOUNDS``, ``HALF`` bits.
    """
    row, block = place_of(size, WIDTH)
    x = block * WIDTH + tl.arange(0, WIDTH)
    inside = x < size
    keys = KEYS + row * size
    key = tl.load(keys + x, mask=inside, other=0)
    code = (key >> 32).to(tl.int32)
    limit = code_of(score_of(code) + alpha)
    high = tl.zeros([WIDTH], tl.int32)  # labels up to ours plus alpha
    low = tl.zeros([WIDTH], tl.int32)  # labels that plus alpha lie below ours
    for step in range(steps):
        half = 1 << (steps - 1 - step)
        probe = high + half
        other = (tl.load(keys + probe - 1, mask=inside & (probe <= size), other=0) >> 32).to(tl.int32)
        high = tl.where((probe <= size) & (other <= limit), probe, high)
        probe = low + half
        other = (tl.load(keys + probe - 1, mask=inside & (probe <= size), other=0) >> 32).to(tl.int32)
        low = tl.where((probe <= size) & (code_of(score_of(other) + alpha) < code), probe, low)
    kind = BOUNDS.dtype.element_ty
    tl.store(BOUNDS + row * size + x, (high.to(kind) << HALF) | low.to(kind), mask=inside)
    tl.store(PLACES + row * size + (key & BEFORE).to(tl.int32), x, mask=inside)


@triton.jit
def rank_of(key):
    """Rank by label in the lower bits of a key."""
    return (key & BEFORE).to(tl.int32) & (IS_SCORE - 1)


@triton.jit
def take_bounds(KEYS, BOUNDS, TAKEN, size, length, WIDTH: tl.constexpr):
    """The bounds in the order of the scores."""
    row, block = place_of(length, WIDTH)
    x = block * WIDTH + tl.arange(0, WIDTH)
    inside = x < length
    p = rank_of(tl.load(KEYS + row * length + x, mask=inside, other=0))
    tl.store(TAKEN + row * length + x, tl.load(BOUNDS + row * size + p, mask=inside, other=0), mask=inside)


@triton.jit
def passed_below(SEEN, BEFORE_WORD, limit, inside):
    """How many of the ranks that were passed lie below a limit."""
    word = tl.load(SEEN + (limit >> 5), mask=inside, other=0)
    before = tl.load(BEFORE_WORD + (limit >> 5), mask=inside, other=0)
    return before + ones_in(word & ((1 << (limit & 31)) - 1))


@triton.jit
def count_pairs(
    KEYS, BOUNDS, SEEN, PASSED, NET, EXCESS, TRIPLES, length,
    TWICE: tl.constexpr, HALF: tl.constexpr, STEP: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Net count of each candidate of an anchor; how often one is too high, and the number of pairs that are compared.

    A word of ``SEEN`` has one bit for each of 32 label ranks, ``PASSED`` the number of bits in the words before. With
    ``TWICE`` the keys of scores and of scores plus margin have a table each, and each kind looks into the other's.

    Keys, bounds and net counts are in the order of the scores: what many programs read at random must fit the cache.
    """
    row = tl.program_id(0).to(tl.int64)
    tables = 1
    if TWICE:
        tables = 2
    KEYS += row * length
    BOUNDS += row * length
    NET += row * length
    SEEN += row * tables * WORDS
    PASSED += row * tables * WORDS
    t = tl.arange(0, STEP)
    w = tl.arange(0, WORDS)
    earlier = t[:, None] < t[None, :]  # the sums over the first axis are within threads
    excess = tl.zeros([STEP], tl.int64)
    triples = tl.zeros([STEP], tl.int64)
    scores_before = 0
    for start in range(0, length, STEP):
        inside = start + t < length
        key = tl.load(KEYS + start + t, mask=inside, other=0)
        p = rank_of(key)
        kind = (key & BEFORE).to(tl.int32) >> 30
        bounds = tl.load(BOUNDS + start + t, mask=inside, other=0)
        high = ((bounds >> HALF) & ((1 << HALF) - 1)).to(tl.int32)
        low = (bounds & ((1 << HALF) - 1)).to(tl.int32)
        if TWICE:
            limit = tl.where(kind == 1, low, high)
            table = (1 - kind) * WORDS
            below = passed_below(SEEN + table, PASSED + table, limit, inside)
            partner = earlier & (kind[:, None] != kind[None, :]) & inside[:, None]
            below += tl.sum((partner & (p[:, None] < limit[None, :])).to(tl.int32), 0)
            reach = scores_before + tl.sum(partner.to(tl.int32), 0)
            too_high = tl.where(kind == 0, reach - below, 0)
            net = tl.where(kind == 0, too_high, below - low)
            scores_before += tl.sum((inside & (kind == 1)).to(tl.int32), 0)
        else:
            ours = earlier & inside[:, None]
            below_high = passed_below(SEEN, PASSED, high, inside)
            below_high += tl.sum((ours & (p[:, None] < high[None, :])).to(tl.int32), 0)
            below_low = passed_below(SEEN, PASSED, low, inside)
            below_low += tl.sum((ours & (p[:, None] < low[None, :])).to(tl.int32), 0)
            too_high = start + t - below_high
            net = too_high - low + below_low
        excess += tl.where(inside, too_high, 0).to(tl.int64)
        triples += tl.where(inside, low, 0).to(tl.int64)
        tl.store(NET + start + t, net, mask=inside)
        tl.debug_barrier()  # all threads read before the tables change
        tl.atomic_add(SEEN + kind * WORDS + (p >> 5), 1 << (p & 31), mask=inside, sem="relaxed")
        tl.debug_barrier()
        for table in range(tables):
            ones = ones_in(tl.load(SEEN + table * WORDS + w))
            tl.store(PASSED + table * WORDS + w, tl.cumsum(ones, 0) - ones)
        tl.debug_barrier()
    tl.store(EXCESS + row, tl.sum(excess, 0))
    tl.store(TRIPLES + row, tl.sum(triples, 0) // tables)


@triton.jit
def add_slopes(
    KEYS, LABELS, NET, SCORES, SLOPES, HINGES, size, length, TWICE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Put the net counts into the order of the candidates, and multiply them by the scores."""
    row, block = place_of(length, WIDTH)
    x = block * WIDTH + tl.arange(0, WIDTH)
    inside = x < length
    p = rank_of(tl.load(KEYS + row * length + x, mask=inside, other=0))
    candidate = row * size + (tl.load(LABELS + row * size + p, mask=inside, other=0) & BEFORE)
    net = tl.load(NET + row * length + x, mask=inside, other=0)
    score = tl.load(SCORES + candidate, mask=inside, other=0.0).to(tl.float64)
    if TWICE:
        tl.atomic_add(SLOPES + candidate, net.to(tl.float32), mask=inside, sem="relaxed")
    else:
        tl.store(SLOPES + candidate, net.to(tl.float32), mask=inside)
    tl.store(HINGES + tl.program_id(0), tl.sum(tl.where(inside, score * net, 0.0), 0))


def rank_anchors(scores: Tensor, labels: Tensor, alpha: float, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """Net counts ``(A, B)`` of all anchors, float32, their hinges and the number of pairs that are compared."""
    (anchors, size), device, twice = scores.shape, scores.device, margin > 0
    length, words = (2 * size if twice else size), triton.next_power_of_2(size // 32 + 1)
    blocks = triton.cdiv(length, _WIDTH)
    half, packed = (16, torch.int32) if size < _PACKED_BELOW else (32, torch.int64)
    slopes = torch.zeros(scores.shape, device=device)
    hinges = torch.empty((anchors, blocks), dtype=torch.float64, device=device)
    excess, triples = torch.empty((2, anchors), dtype=torch.int64, device=device)
    step = max(1, _CELLS // size)
    for first in range(0, anchors, step):
        some = slice(first, first + step)
        grades, values = labels[some], scores[some]
        rows = len(values)
        by_label = _sorted_keys(grades, None, None, 0.0)
        places = torch.empty((rows, size), dtype=torch.int32, device=device)
        bounds = torch.empty((rows, size), dtype=packed, device=device)
        find_bounds[rows * triton.cdiv(size, _WIDTH),](
            by_label, places, bounds, size, size.bit_length(), alpha, half, _WIDTH, num_warps=4
        )
        keys = _sorted_keys(values, by_label, places, margin)
        taken, net = (torch.empty((rows, length), dtype=kind, device=device) for kind in (packed, torch.int32))
        take_bounds[rows * blocks,](keys, bounds, taken, size, length, _WIDTH, num_warps=4)
        seen = torch.zeros((rows, 1 + twice, words), dtype=torch.int32, device=device)
        count_pairs[rows,](
            keys, taken, seen, torch.zeros_like(seen), net, excess[some], triples[some], length,
            twice, half, _STEP, words, num_warps=_WARPS,
        )  # fmt: skip
        add_slopes[rows * blocks,](
            keys, by_label, net, values, slopes[some], hinges[some], size, length, twice, _WIDTH, num_warps=4
        )
    return slopes, hinges.sum() + margin * excess.sum().double(), triples.sum()


def _sorted_keys(values: Tensor, by_label: Tensor | None, places: Tensor | None, margin: float) -> Tensor:
    """See :func:`sort_rows`; with a margin each value has two keys. Long rows of scores: the lower bits alone."""
    rows, size = values.shape
    width = triton.next_power_of_2(2 * size if margin > 0 else size)
    if width <= SORTED_UP_TO:
        keys = torch.empty((rows, 2 * size if margin > 0 else size), dtype=torch.int64, device=values.device)
        sort_rows[rows,](
            values, places, keys, size, margin, places is not None, margin > 0, width,
            num_warps=min(32, max(1, width // (32 * _KEYS))),
        )  # fmt: skip
        return keys
    # A radix sort of 32 bits with positions takes half the passes of one of 64 bits, which torch gives positions, too.
    if by_label is not None:  # equal scores stay in the order of their labels
        values = values.gather(1, by_label & LATEST)
    if margin > 0:
        values = torch.cat((values + margin, values), 1)
    ascending, low = (values + 0.0).sort(dim=1, stable=True)  # -0.0 equals 0.0
    if by_label is None:
        return codes(ascending).long() << 32 | low
    return low + (low >= size) * (IS_SCORE.value - size) if margin > 0 else low
