"""Every fast path equals the plain one, on batches large enough to use it."""

import pytest
import torch

from bcls.losses import AdaptiveLadderLoss, KendallLoss, KendallWindowLoss, LadderLoss
from bcls.losses._torch import mining, pairs
from bcls.losses._torch.mining import empty_windows
from bcls.losses._torch.pairs import count_by_windows, count_in_blocks
from tests.losses.factories import batch, value_and_gradient
from tests.reference.window_loop import loop_over_windows


@pytest.mark.parametrize("norm", ["all", "valid"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.1), (0.2, 0.01), (0.0, 0.25), (0.33, 0.07)])
@pytest.mark.parametrize("size", [2, 37, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bins_equal_the_loop_over_windows(size, alpha, beta, norm, dtype):
    similarity, relevance = batch(size, seed=size, dtype=dtype)
    loss = KendallWindowLoss(alpha, beta, window_norm=norm, reduction="sum")
    value, gradient = value_and_gradient(loss, similarity, relevance)
    expected, slope = value_and_gradient(loop_over_windows, similarity, relevance, alpha=alpha, beta=beta, norm=norm)
    torch.testing.assert_close(value, expected, rtol=2e-5, atol=1e-5)
    torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [30.0, 1e9, 1e35])
def test_scores_of_every_size_are_mined(scale):
    similarity, relevance = batch(37)
    similarity = similarity * scale  # as those before a temperature, from both sides of 0
    value, gradient = value_and_gradient(KendallWindowLoss(reduction="sum"), similarity, relevance)
    expected, slope = value_and_gradient(loop_over_windows, similarity.double(), relevance, alpha=0.2, beta=0.1)
    torch.testing.assert_close(value.double(), expected, rtol=2e-5, atol=0)
    torch.testing.assert_close(gradient.double(), slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "loss", [KendallWindowLoss(), KendallWindowLoss(beta=0.01), LadderLoss(), AdaptiveLadderLoss()]
)
@pytest.mark.parametrize("cached", [10, 64, 200])
def test_blocks_do_not_change_the_result(monkeypatch, loss, cached):
    similarity, relevance = batch(23, dtype=torch.float64)
    whole, slope = value_and_gradient(loss, similarity, relevance)
    monkeypatch.setattr(mining, "_CACHED", cached)
    monkeypatch.setattr(mining, "_ROWS", 10)
    value, gradient = value_and_gradient(loss, similarity, relevance)
    torch.testing.assert_close(value, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, slope, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("arguments", [{}, {"window_norm": "valid"}, {"beta": 0}, {"beta": 0, "window_norm": "valid"}])
@pytest.mark.parametrize("tied", [False, True])
def test_runs_equal_all_pairs(monkeypatch, arguments, tied):
    similarity, relevance = batch(40, dtype=torch.float64, tied=tied)
    loss = KendallWindowLoss(**{"beta": 0.02, "reduction": "sum", **arguments})
    monkeypatch.setattr(mining, "_MANY", 10**9)
    plain, slope = value_and_gradient(loss, similarity, relevance)
    monkeypatch.setattr(mining, "_MANY", 1)
    value, gradient = value_and_gradient(loss, similarity, relevance)
    torch.testing.assert_close(value, plain, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 31, 32, 33, 70])
def test_counts_by_windows_equal_blocks(size, tied):
    similarity, relevance = batch(size, seed=size, dtype=torch.float64, tied=tied)
    reach = (relevance * 10).long() + 10
    plain = count_in_blocks(similarity, reach, reach + 2, 0.0, graded=True)
    fast = count_by_windows(similarity, reach, reach + 2, 20)
    assert torch.equal(fast.net, plain.net)
    torch.testing.assert_close(fast.hinges, plain.hinges, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", [KendallLoss(margin=0.05), KendallWindowLoss(mining="none")])
def test_either_count_gives_the_loss(monkeypatch, loss):
    similarity, relevance = batch(50, dtype=torch.float64)
    results = []
    for size, by_windows in (
        (1, count_by_windows),
        (10**9, lambda *given: count_in_blocks(*given[:3], 0.0, graded=True)),
    ):
        monkeypatch.setitem(pairs.RANKS_FROM, "cpu", size)
        monkeypatch.setattr(pairs, "count_by_windows", by_windows)
        results.append(value_and_gradient(loss, similarity, relevance))
    (fast, gradient), (plain, slope) = results
    torch.testing.assert_close(fast, plain, rtol=1e-12, atol=0)
    assert torch.equal(gradient, slope)


@pytest.mark.parametrize("cells", [1, 2500, 5001])
def test_uneven_blocks_of_anchors(monkeypatch, cells):
    similarity, relevance = batch(50, dtype=torch.float64)
    whole = count_in_blocks(similarity, relevance.double(), relevance.double(), 0.0, graded=False)
    monkeypatch.setattr(pairs, "_CELLS", cells)
    parts = count_in_blocks(similarity, relevance.double(), relevance.double(), 0.0, graded=False)
    assert torch.equal(parts.net, whole.net)


@pytest.mark.parametrize("loss", [KendallLoss(), KendallWindowLoss(), KendallWindowLoss(beta=0.01)])
def test_float32_value_survives_a_large_offset(loss):
    """Scores around 10,000 differ by little: a float32 sum of count times score would lose what counts."""
    similarity, relevance = batch(300)
    shifted = similarity + 10_000
    torch.testing.assert_close(loss(shifted, relevance).double(), loss(shifted.double(), relevance), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [KendallLoss(), KendallWindowLoss(), KendallWindowLoss(beta=0), LadderLoss()])
def test_tied_scores_have_no_gradient(loss, dtype):
    """A hinge at 0 is flat here, and -0.0 ties with 0.0."""
    _, relevance = batch(6)
    scores = torch.zeros(6, 6, dtype=dtype)
    scores[::2] = -0.0
    if isinstance(loss, LadderLoss):
        loss = LadderLoss(margins=(0.0, 0.0))
    _, gradient = value_and_gradient(loss, scores, relevance)
    assert not gradient.any()


def test_a_gap_of_exactly_alpha_does_not_count():
    similarity = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    relevance = torch.tensor([[1.0, 0.75], [0.75, 1.0]])
    for ranks_from in (1, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(pairs.RANKS_FROM, "cpu", ranks_from)
            assert KendallLoss(alpha=0.25)(similarity, relevance) == 0
            assert KendallLoss(alpha=0.2499, normalize="active")(similarity, relevance) == 2
    # The pair that does not count is not averaged over either.
    relevance = torch.tensor([[1.0, 0.75, 0.25], [0.75, 1.0, 0.25], [0.25, 0.25, 1.0]])
    scores = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    assert KendallLoss(alpha=0.25, normalize="active")(scores, relevance) == 2


def test_a_label_on_a_threshold_is_above_it():
    similarity = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 1.0]])
    relevance = torch.tensor([[1.0, 0.25, 0.0], [0.25, 1.0, 0.0], [0.0, 0.0, 1.0]])
    # Row 0: caption 1 on the threshold must rank above caption 2, and ranks 0.5 below; columns alike.
    value = LadderLoss(thresholds=(0.25,), margins=(0.0, 0.0), weights=(1.0,), reduction="sum")(similarity, relevance)
    assert float(value) == 1.0


def test_labels_get_no_gradient_and_may_be_half():
    similarity, relevance = batch(8)
    learned = relevance.clone().requires_grad_()
    scores = similarity.clone().requires_grad_()
    KendallWindowLoss()(scores, learned).backward()
    assert learned.grad is None
    # 0.3 in half precision lies below 0.3: it must be compared as the number that it is, not in half steps.
    half = (relevance * 10).round().div(10).half()
    expected = KendallWindowLoss(beta=0.01)(similarity, half.double())
    torch.testing.assert_close(KendallWindowLoss(beta=0.01)(similarity, half), expected)


def test_cells_beyond_twenty_bits():
    similarity, relevance = batch(1100)
    value = KendallWindowLoss()(similarity, relevance)
    torch.testing.assert_close(value, loop_over_windows(similarity, relevance) / 1100, rtol=1e-4, atol=0)


def test_hinges_are_linear_in_the_counts():
    scores = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    active = count_in_blocks(scores, torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]]), 0.5, graded=False)
    assert float(active.hinges) == pytest.approx(2.5)


def test_windows_below_every_label_are_left_out():
    assert [empty_windows(lowest, 0.1) for lowest in (-1.0, -0.95, -0.25, 0.0)] == [0, 0, 7, 10]
