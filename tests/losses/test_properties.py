"""Properties of the losses that hold for every batch."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bcls.losses import (
    LOSSES,
    KendallLoss,
    KendallWindowLoss,
    TripletHardLoss,
    TripletLoss,
    TripletSoftLoss,
    from_name,
)
from tests.losses.factories import batches, untied, value_and_gradient
from tests.reference.kendall_loss import split, window_edges

EXACT = {"rtol": 1e-9, "atol": 1e-9}
#: Every registered loss with its defaults; other arguments where they cover more, or where defaults have kinks.
ALL = {name: {} for name in LOSSES} | {
    "infonce": {"temperature": 0.3},
    "kendall": {"normalize": "active"},
    "kendall-sw-hs": {"window_norm": "valid"},
    "bcls": {"beta": 0},
    "sam": {"sampling": "hard"},
    "triplet-sn+kendall": {"weights": (1.0, 0.5)},
}
KENDALL = [
    KendallLoss(reduction="sum"),
    KendallLoss(alpha=0.0, normalize="active"),
    KendallWindowLoss(reduction="sum"),
    KendallWindowLoss(mining="none"),
    KendallWindowLoss(beta=0, window_norm="valid"),
    KendallWindowLoss(beta=0.01),
]


@given(batch=batches(smallest=2))
@settings(max_examples=40, deadline=None)
def test_soft_negatives_tend_to_the_hardest(batch):
    similarity, relevance, image_ids = batch
    hard = TripletHardLoss(reduction="sum")(similarity, relevance, image_ids=image_ids)
    previous = math.inf
    for gamma in (10.0, 100.0, 1e4, 1e8):
        soft = TripletSoftLoss(gamma=gamma, reduction="sum")(similarity, relevance, image_ids=image_ids)
        # The log-sum-exp exceeds the maximum by log(negatives) / gamma at most, for each of 2 B anchors.
        excess = 2 * len(similarity) * math.log(max(len(similarity) - 1, 1)) / gamma
        assert hard - 1e-9 <= soft <= hard + excess + 1e-9
        assert soft <= previous + 1e-9
        previous = soft
    torch.testing.assert_close(soft, hard, rtol=0, atol=1e-6)
    below = TripletSoftLoss(gamma=20.0, lse="mean", reduction="sum")(similarity, relevance, image_ids=image_ids)
    assert below <= hard + 1e-9


@given(batch=batches(labels="wide"))
@settings(max_examples=40, deadline=None)
def test_kendall_of_the_matching_pair_is_the_triplet_loss(batch):
    """The paper's identity, L_K (i = j) = L_T (m = 0): leave only the own pair with a higher label."""
    similarity, relevance, _ = batch
    off = ~torch.eye(len(similarity), dtype=torch.bool)
    assume(bool((relevance[off] < 1 - 1e-4).all()))
    binary = torch.eye(len(similarity), dtype=torch.float64)  # every other pair has one same, lower label
    kendall = KendallLoss(alpha=0.0, reduction="sum")(similarity, binary)
    triplet = TripletLoss(margin=0.0, reduction="sum")(similarity, relevance)
    torch.testing.assert_close(kendall, triplet, **EXACT)


@pytest.mark.parametrize(("name", "arguments"), ALL.items())
@given(batch=batches(smallest=2), data=st.data())
@settings(max_examples=15, deadline=None)
def test_order_of_the_batch_does_not_matter(name, arguments, batch, data):
    similarity, relevance, image_ids = batch
    similarity = untied(similarity)
    if name == "listmle":  # ties in the labels are broken by the index
        relevance = untied(relevance / 2)
    order = data.draw(st.permutations(range(len(similarity))))
    loss = from_name(name, **arguments)
    value, gradient = value_and_gradient(loss, similarity, relevance, image_ids=image_ids)
    permuted, slope = value_and_gradient(
        loss,
        similarity[order][:, order],
        relevance[order][:, order],
        image_ids=None if image_ids is None else image_ids[order],
    )
    torch.testing.assert_close(permuted, value, **EXACT)
    torch.testing.assert_close(slope, gradient[order][:, order], **EXACT)


@pytest.mark.parametrize(("name", "arguments"), ALL.items())
@given(batch=batches())
@settings(max_examples=15, deadline=None)
def test_images_and_captions_may_swap_roles(name, arguments, batch):
    similarity, relevance, image_ids = batch
    similarity = untied(similarity)
    loss = from_name(name, **arguments)
    value, gradient = value_and_gradient(loss, similarity, relevance, image_ids=image_ids)
    swapped, slope = value_and_gradient(loss, similarity.T, relevance.T, image_ids=image_ids)
    torch.testing.assert_close(swapped, value, **EXACT)
    torch.testing.assert_close(slope, gradient.T, **EXACT)


@given(
    labels=st.lists(st.floats(-1, 1), min_size=2, max_size=12),
    alpha=st.sampled_from([0.0, 0.1, 0.2, 0.5]),
    beta=st.sampled_from([0.05, 0.1, 0.3]),
)
@settings(max_examples=60, deadline=None)
def test_windows_cover_every_wide_gap_and_no_narrow_one(labels, alpha, beta):
    """K-SW counts a pair if its labels differ by alpha + beta or more, and never if by less than alpha."""
    size = len(labels)
    # All rows are alike, so columns hold nothing but ties and cost nothing.
    relevance = torch.tensor(labels, dtype=torch.float64).expand(size, size)
    loss = KendallWindowLoss(alpha, beta, mining="none", reduction="sum")
    for j, k in itertools.permutations(range(size), 2):
        scores = torch.tensor(labels, dtype=torch.float64) * 1e-9  # in order
        scores[j], scores[k] = 0.0, 1.0  # but for this pair, and pairs with k
        others = [label for at, label in enumerate(labels) if at not in (j, k)]
        value = float(loss(scores.expand(size, size), relevance)) / size
        gap = labels[j] - labels[k]
        if gap >= alpha + beta + 2e-6:
            assert value > 0.5
        if gap < alpha - 2e-6 and all(label - labels[k] < alpha - 2e-6 for label in others):
            assert value < 1e-6


@pytest.mark.parametrize("loss", KENDALL)
@given(batch=batches(smallest=2, labels="wide", tied_scores=False))
@settings(max_examples=20, deadline=None)
def test_concordant_scores_cost_nothing(loss, batch):
    _, relevance, _ = batch
    similarity = torch.exp(3 * relevance)  # any increasing function of the labels
    value, gradient = value_and_gradient(loss, similarity, relevance)
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("loss", KENDALL)
@given(batch=batches(smallest=2), shift=st.floats(-50, 50))
@settings(max_examples=20, deadline=None)
def test_a_constant_added_to_all_scores_changes_no_kendall_loss(loss, batch, shift):
    similarity, relevance, _ = batch
    value = loss(similarity, relevance)
    torch.testing.assert_close(loss(similarity + shift, relevance), value, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("name", "arguments"), ALL.items())
@given(seed=st.integers(0, 2**31), size=st.integers(2, 5))
@settings(max_examples=10, deadline=None)
def test_gradient_is_the_slope(name, arguments, seed, size):
    """Against finite differences, away from kinks and ties."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.randn(size, size, generator=generator, dtype=torch.float64)
    relevance = (torch.rand(size, size, generator=generator, dtype=torch.float64) * 1.8 - 0.9).fill_diagonal_(1)
    gaps = (similarity.flatten()[:, None] - similarity.flatten()[None, :]).abs() + torch.eye(size * size) * 9
    # Hinges bend where a difference of two scores meets 0, the margin 0.2, a rung's margin or an adaptive one.
    assume(float(gaps.min()) > 1e-4)
    loss = from_name(name, **arguments)
    near = [0.2, 0.01]
    if name == "sam":
        adaptive = (relevance.diagonal()[:, None] - relevance).abs().flatten() / 10
        near += adaptive.tolist() + ((relevance.diagonal()[None, :] - relevance).abs().flatten() / 10).tolist()
    assume(all(float((gaps - kink).abs().min()) > 1e-4 for kink in near))
    assert torch.autograd.gradcheck(
        lambda scores: loss(scores, relevance), similarity.requires_grad_(), eps=1e-6, atol=1e-5
    )


def test_split_of_the_reference_matches_the_stated_windows():
    edges = window_edges(0.2, 0.1)
    assert len(edges) == 18
    assert edges[0] == pytest.approx((-0.9, -0.7))
    assert edges[-1] == pytest.approx((0.8, 1.0))
    assert split([1, 2, 3], [1.0, 0.9, 0.7], *edges[-1]) == ([1], [3])


def test_smaller_strides_tend_to_the_limit():
    generator = torch.Generator().manual_seed(0)
    similarity = torch.randn(12, 12, generator=generator, dtype=torch.float64)
    relevance = (torch.rand(12, 12, generator=generator, dtype=torch.float64) * 2 - 1).fill_diagonal_(1)
    limit = KendallWindowLoss(beta=0)(similarity, relevance)
    errors = [abs(float(KendallWindowLoss(beta=beta)(similarity, relevance) - limit)) for beta in (0.1, 0.01, 0.0005)]
    assert errors[2] < errors[1] < 0.02 * float(limit)
    assert errors[2] < 1e-3 * float(limit)


@pytest.mark.parametrize("name", ALL)
def test_labels_get_no_gradient(name):
    generator = torch.Generator().manual_seed(0)
    similarity = torch.randn(6, 6, generator=generator).requires_grad_()
    relevance = (torch.rand(6, 6, generator=generator) * 2 - 1).fill_diagonal_(1).requires_grad_()
    from_name(name, **ALL[name])(similarity, relevance).backward()
    assert similarity.grad.abs().sum() > 0
    assert relevance.grad is None
