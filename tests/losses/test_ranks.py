"""The count by ranks equals the comparison of all pairs, and the slow transcription of the loss."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.losses import KendallLoss
from bcls.losses._torch import mining, pairs, ranks
from bcls.losses._torch.pairs import count_in_blocks, count_pairs
from bcls.losses._torch.ranks import count_below, count_by_ranks, order_rows
from tests.losses.factories import batch, value_and_gradient
from tests.reference.kendall_loss import kendall

#: Few values, so that many are equal; -0.0 equals 0.0.
LABELS = st.sampled_from([-1.0, -0.3, -0.0, 0.0, 0.1, 0.3, 0.5, 1.0]) | st.floats(-1, 1, width=32)
SCORES = st.sampled_from([-1.0, -0.0, 0.0, 0.05, 0.1, 1.0, 3e38, -3e38, 1e-45]) | st.floats(
    -(2.0**100), 2.0**100, width=32
)

#: Sums and differences of these are exact.
EIGHTHS = st.integers(-16, 16).map(lambda number: number / 8)


def matrix(numbers, size):
    return st.lists(numbers, min_size=size * size, max_size=size * size).map(
        lambda values: torch.tensor(values, dtype=torch.float32).view(size, size)
    )


@st.composite
def batches(draw, largest, scores=SCORES, labels=LABELS):
    size = draw(st.integers(1, largest))
    return draw(matrix(scores, size)), draw(matrix(labels, size))


def assert_equal_counts(scores, labels, alpha, margin):
    net, pairs, triples = count_by_ranks(scores, labels, alpha, margin)
    compared = count_in_blocks(scores, labels, labels + alpha, margin, graded=False)
    assert torch.equal(net.long(), compared.net)
    above = labels[:, :, None] > (labels + alpha)[:, None, :]
    assert triples == above.sum()
    assert pairs == (above & (scores[:, :, None] < (scores + margin)[:, None, :])).sum()


@settings(max_examples=150, deadline=None)
@given(batches(6), st.sampled_from([0.0, 0.1, 0.2, 1.9]), st.sampled_from([0.0, 0.05, 1e30]))
def test_counts_of_any_numbers(inputs, alpha, margin):
    scores, labels = inputs
    assert_equal_counts(scores, labels, alpha, margin)
    assert_equal_counts(scores.double(), labels.double(), alpha, margin)
    assert_equal_counts(scores.bfloat16(), labels, alpha, margin)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("margin", [0.0, 0.15])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 31, 32, 33, 64, 130, 300])
def test_counts_of_any_size(size, tied, margin, dtype):
    similarity, relevance = batch(size, seed=size, dtype=torch.float64, tied=tied)
    assert_equal_counts(similarity.to(dtype), relevance.to(torch.promote_types(dtype, torch.float32)), 0.2, margin)


@pytest.mark.parametrize("size", [1024, 1056, 1500])
@pytest.mark.parametrize("margin", [0.0, 0.15])
def test_counts_with_three_levels(size, margin):
    generator = torch.Generator().manual_seed(size)
    scores, labels = torch.randn(3, size, generator=generator), torch.rand(3, size, generator=generator)
    assert_equal_counts(scores, labels, 0.2, margin)


@pytest.mark.parametrize("size", [1025, 33_000])
def test_counts_with_three_and_four_levels_of_the_tree(size):
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(size, generator=generator)[None]
    ends = torch.randint(0, size + 1, (1, size), generator=generator, dtype=torch.int32)
    limits = torch.randint(0, size, (1, size), generator=generator, dtype=torch.int32)
    up_to, below = count_below(order, [(ends, limits), (ends, limits)])
    for query in range(0, size, 97):
        first = order[0, : ends[0, query]]
        assert up_to[0, query] == (first <= limits[0, query]).sum()
        assert below[0, query] == (first < limits[0, query]).sum()


def test_equal_labels_or_scores_count_nothing():
    generator = torch.Generator().manual_seed(0)
    numbers, same = torch.rand(5, 70, generator=generator), torch.full((5, 70), 0.3)
    for scores, labels in ((numbers, same), (same, numbers), (same, same)):
        assert_equal_counts(scores, labels, 0.0, 0.0)
        assert not count_by_ranks(scores, labels, 0.0, 0.0)[0].any()


@settings(max_examples=40, deadline=None)
@given(
    batches(5, EIGHTHS, EIGHTHS.map(lambda number: number / 2)),
    st.sampled_from([0.0, 0.1875]),
    st.sampled_from([0.0, 0.125]),
    st.sampled_from(["none", "active"]),
    st.booleans(),
)
def test_the_loss_equals_its_transcription(inputs, alpha, margin, normalize, tied):
    similarity, relevance = inputs[0].double(), inputs[1]
    if not tied:
        similarity += torch.arange(similarity.numel()).view_as(similarity) / 1000
    loss = KendallLoss(alpha, margin, normalize, reduction="sum")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(pairs.RANKS_FROM, "cpu", 1)
        ours = value_and_gradient(loss, similarity, relevance)
    arguments = {"alpha": alpha, "margin": margin, "normalize": normalize}
    theirs = value_and_gradient(kendall, similarity, relevance, **arguments)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-9, atol=1e-9)
    if not tied:  # the transcription has another gradient where a hinge is 0
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("normalize", ["none", "active"])
def test_the_loss_by_blocks_of_anchors(monkeypatch, normalize):
    similarity, relevance = batch(70)
    loss = KendallLoss(margin=0.05, normalize=normalize)
    expected, slope = value_and_gradient(loss, similarity, relevance)
    monkeypatch.setattr("bcls.losses._torch.mining._CACHED", 70 * 16)
    value, gradient = value_and_gradient(loss, similarity, relevance)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, slope, rtol=1e-6, atol=0)
    monkeypatch.setitem(pairs.RANKS_FROM, "cpu", 10**9)
    torch.testing.assert_close(value_and_gradient(loss, similarity, relevance), (value, gradient), rtol=1e-5, atol=0)


def test_without_numpy(monkeypatch):
    """As on other devices."""
    similarity, relevance = batch(100, tied=True)
    with_numpy = [count_by_ranks(similarity, relevance, 0.2, margin) for margin in (0.0, 0.1)]
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    old_numpy = [count_by_ranks(similarity, relevance, 0.2, margin) for margin in (0.0, 0.1)]
    monkeypatch.setattr(ranks, "_on_host", lambda tensor: False)
    without = [count_by_ranks(similarity, relevance, 0.2, margin) for margin in (0.0, 0.1)]
    for first, second, third in zip(with_numpy, old_numpy, without, strict=True):
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[0], third[0])


def test_blocks_in_threads_give_the_result_of_one_thread(monkeypatch):
    monkeypatch.setattr(mining, "_CACHED", 5 * 70)  # blocks of five anchors
    generator = torch.Generator().manual_seed(0)
    scores, labels = (torch.randn(70, 70, generator=generator) for _ in range(2))
    results, threads = [], []
    before = torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            results.append(count_pairs(scores, labels, 0.2, 0.1))
            threads.append(torch.get_num_threads())
            with ThreadPoolExecutor(1) as pool:  # a thread that is started after the count
                threads.append(pool.submit(torch.get_num_threads).result())
        finally:
            torch.set_num_threads(before)
    assert threads == [1, 1, 3, 3]
    one, three = results
    assert all(torch.equal(first, second) for first, second in zip(one, three, strict=True))
    expected = count_in_blocks(scores, labels, labels + 0.2, 0.1, graded=False)
    assert torch.equal(three.net, expected.net)


def test_rows_are_sorted_as_by_torch():
    numbers = torch.randn(7, 9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(order_rows(numbers), numbers.argsort(dim=1, stable=True))


def test_nan_stays_in_range():
    """On a GPU it is reported by a later call."""
    for size in (32, 33):
        scores, labels = torch.full((2, size), torch.nan), torch.full((2, size), torch.nan)
        for numbers in (scores, scores.double()):
            for margin in (0.0, 0.1):
                assert count_by_ranks(numbers, labels.to(numbers.dtype), 0.2, margin)[0].shape == (2, size)


def test_compiled_and_mapped():
    similarity, relevance = batch(70)
    expected, slope = value_and_gradient(KendallLoss(), similarity, relevance)
    compiled = torch.compile(KendallLoss(), backend="aot_eager", fullgraph=True)
    value, gradient = value_and_gradient(compiled, similarity, relevance)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, slope, rtol=1e-6, atol=1e-9)
    values = torch.func.vmap(lambda scores: count_pairs(scores, relevance, 0.2, 0.0).hinges)(similarity[None])
    torch.testing.assert_close(values[0], count_pairs(similarity, relevance, 0.2, 0.0).hinges)
