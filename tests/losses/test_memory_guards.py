"""Kernels write only inside their memory: all of it lies between bands that must not change.

On a GPU or in Triton's interpreter, as ``test_tile_kernels.py``.
"""

import random

import pytest
import torch

from bcls.losses import BCLSLoss, KendallLoss, StreamingBCLSLoss, definitions
from bcls.losses.definitions import SoftNegatives, sliding_windows
from bcls.losses.fused import matrix_loss
from tests.losses.factories import DEVICE, GPU, assert_same, batch, embeddings, ids_of, plain, slow_if_interpreted, step

#: Elements before and after what is allocated.
BAND = 64
SENTINEL = {torch.float32: -7.25, torch.float64: -7.25, torch.int64: -0x0123456789ABCDEF, torch.int32: -0x01234567}
#: One program an anchor: the interpreter is slow at it.
SMALL = sorted(random.Random(0).sample(range(1, 131), 20)) if GPU else [1, 3, 16, 18]
TILED = sorted(random.Random(1).sample(range(1, 131), 20)) if GPU else [1, 31, 33, 65, 130]


class Guarded:
    """``torch`` with allocations inside larger ones."""

    def __init__(self):
        self.bands = []

    def __getattr__(self, name):
        return getattr(torch, name)

    def _between(self, shape, dtype, device, *, pin_memory=False):
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        number = torch.Size(shape).numel()
        whole = torch.full((number + 2 * BAND,), SENTINEL[dtype], dtype=dtype, device=device, pin_memory=pin_memory)
        self.bands.append((whole, number))
        return whole[BAND : BAND + number].view(shape)

    def empty(self, shape, *, dtype=torch.float32, device):
        return self._between(shape, dtype, device)

    def zeros(self, *shape, dtype=torch.float32, device=None, pin_memory=False):
        shape = shape[0] if len(shape) == 1 else shape
        return self._between(shape, dtype, device, pin_memory=pin_memory).zero_()

    def full(self, shape, value, *, dtype=torch.float32, device=None):
        return self._between(shape, dtype, device).fill_(value)

    def zeros_like(self, other):
        return self._between(other.shape, other.dtype, other.device).zero_()

    def check(self):
        assert self.bands
        for whole, number in self.bands:
            assert (whole[:BAND] == SENTINEL[whole.dtype]).all()
            assert (whole[BAND + number :] == SENTINEL[whole.dtype]).all()


@pytest.fixture
def guarded(monkeypatch):
    from bcls.losses import fused, passes
    from bcls.losses._triton import engine, ranks, small

    guard = Guarded()
    for module in (passes, small, ranks, engine, fused, definitions):
        monkeypatch.setattr(module, "torch", guard)
    monkeypatch.setattr(definitions, "_REPORTS", {})  # a new one, between bands
    yield guard
    if GPU:
        torch.cuda.synchronize()
    guard.check()


def inside(matrix, seed):
    """The same values in the middle of a larger matrix, rows or columns apart, or transposed."""
    rows, columns = matrix.shape
    down, across = 1 + seed % 2, 1 + seed // 2 % 2
    whole = torch.full((down * rows + 3, across * columns + 5), torch.nan, device=matrix.device)
    view = whole[2 : 2 + down * rows : down, 3 : 3 + across * columns : across]
    view.copy_(matrix)
    return whole, view


def check_matrix(size, largest, monkeypatch, **halves):
    from bcls.losses._triton import small

    monkeypatch.setattr(small, "LARGEST", largest)
    similarity, relevance = batch(size, seed=size, device=DEVICE)
    ids = ids_of(size, device=DEVICE)
    (around, scores), (around_labels, labels) = inside(similarity, size), inside(relevance, size + 1)
    before, before_labels = around.clone(), around_labels.clone()

    def loss(leaf):
        terms = matrix_loss(leaf, labels, image_ids=ids, **halves)
        return terms.binary + 2 * terms.continuous

    leaf = scores.detach().requires_grad_()
    value = loss(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    torch.testing.assert_close(around, before, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(around_labels, before_labels, rtol=0, atol=0, equal_nan=True)
    return (value.detach(), gradient), similarity, relevance, ids


@pytest.mark.parametrize(
    ("largest", "size"),
    [
        pytest.param(largest, size, marks=slow_if_interpreted if size in {16, 65, 130} else ())
        for largest, sizes in ((4096, SMALL), (0, TILED))
        for size in sizes
    ],
)
def test_bcls(guarded, monkeypatch, largest, size):
    halves = {
        "soft": SoftNegatives(average=True, scale=1 / size),
        "windows": sliding_windows(0.3, 0.25, scale=1 / size),
    }
    ours, similarity, relevance, ids = check_matrix(size, largest, monkeypatch, **halves)
    reference = plain(BCLSLoss(0.3, 0.25, weight=2.0, lse="mean"))
    assert_same(ours, step(lambda scores: reference(scores, relevance, image_ids=ids), similarity))


@pytest.mark.parametrize(("largest", "size"), [(4096, SMALL[1]), (0, TILED[2])])
@pytest.mark.parametrize("half", ["soft", "windows"])
def test_halves(guarded, monkeypatch, largest, size, half):
    halves = {
        "soft": {"soft": SoftNegatives()},
        "windows": {"windows": sliding_windows(0.2, 0.5, valid_only=True)},
    }[half]
    (value, gradient), *_ = check_matrix(size, largest, monkeypatch, **halves)
    assert value.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("ranks_from", [1, 10**9])
@pytest.mark.parametrize("size", TILED if GPU else [1, 5, pytest.param(17, marks=pytest.mark.slow)])
def test_dense_kendall(guarded, monkeypatch, size, ranks_from):
    monkeypatch.setattr("bcls.losses._triton.engine.RANKS_FROM", ranks_from)
    similarity, relevance = batch(size, seed=size, device=DEVICE)
    scores, labels = inside(similarity, size)[1], inside(relevance, size + 1)[1]
    ours = step(lambda leaf: KendallLoss()(leaf, labels), scores)
    assert_same(ours, step(lambda leaf: plain(KendallLoss())(leaf, relevance), similarity))


@pytest.mark.parametrize("size", TILED if GPU else [33])
def test_streaming(guarded, size):
    images, texts, captions = embeddings(size, seed=size, device=DEVICE)
    StreamingBCLSLoss(0.2, 0.3, step=32)(images.requires_grad_(), texts, captions).backward()
    assert images.grad.isfinite().all()
