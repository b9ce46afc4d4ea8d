"""The adaptive ladder loss: k-means against a plain loop, silhouette against scikit-learn."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import silhouette_score

from bcls.losses import AdaptiveLadderLoss, LadderLoss, ladder
from bcls.losses.ladder import SortedLabels, kmeans, level_thresholds, silhouette
from tests.losses.factories import batches, untied, value_and_gradient
from tests.reference.kendall_loss import hinge
from tests.reference.triplet import is_negative, triplet_hard


def plain_kmeans(points, levels):
    """Lloyd's algorithm on sorted points from equal quantiles; a point in the middle goes up."""
    cuts = [len(points) * k // levels for k in range(levels + 1)]
    labels = [sum(at >= cut for cut in cuts[1:-1]) for at in range(len(points))]
    centres = [points[0]] * levels
    while True:
        for k in range(levels):
            own = [p for p, label in zip(points, labels, strict=True) if label == k]
            centres[k] = sum(own) / len(own) if own else centres[k]
        moved = [sum(p >= (centres[k] + centres[k + 1]) / 2 for k in range(levels - 1)) for p in points]
        if moved == labels:
            return labels, centres
        labels = moved


def plain_thresholds(points, fewest=2, most=4):
    best, thresholds = -2.0, []
    for levels in range(fewest, most + 1):
        if len(points) < levels:
            continue
        labels, centres = plain_kmeans(points, levels)
        if len(set(labels)) < levels:
            continue
        score = 0.0 if len(points) == levels else silhouette_score([[p] for p in points], labels)
        if score > best + 1e-12:
            best = score
            thresholds = [(low + high) / 2 for low, high in itertools.pairwise(centres)]
    return thresholds


def line_of(points):
    points = torch.tensor([points], dtype=torch.float64)
    return SortedLabels(points, torch.nn.functional.pad(points.cumsum(1), (1, 0)), torch.tensor([[points.shape[1]]]))


# Drawn at random: points as close as rounding errors would test nothing but rounding.
points_strategy = st.tuples(st.integers(0, 2**31), st.integers(4, 20)).map(
    lambda drawn: sorted((torch.rand(drawn[1], generator=torch.Generator().manual_seed(drawn[0])) * 2 - 1).tolist())
)


@given(points=points_strategy, levels=st.integers(2, 4))
@settings(max_examples=100, deadline=None)
def test_kmeans_equals_the_plain_loop(points, levels):
    labels, centres = plain_kmeans(points, levels)
    cuts, found = kmeans(line_of(points), levels)
    assert [sum(at >= cut for cut in cuts[0, 1:-1].tolist()) for at in range(len(points))] == labels
    assert found[0].tolist() == pytest.approx(centres)


@given(points=points_strategy, levels=st.integers(2, 4))
@settings(max_examples=100, deadline=None)
def test_silhouette_equals_scikit_learn(points, levels):
    cuts, _ = kmeans(line_of(points), levels)
    labels = [sum(at >= cut for cut in cuts[0, 1:-1].tolist()) for at in range(len(points))]
    score = float(silhouette(line_of(points), cuts))
    if len(set(labels)) < levels:
        assert score == -float("inf")
    elif len(points) > levels:
        assert score == pytest.approx(silhouette_score([[p] for p in points], labels), abs=1e-7)


def reference(similarity, relevance, image_ids):
    loss = triplet_hard(similarity, relevance, image_ids)
    size = len(similarity)
    for i in range(size):
        for cells in ([(i, j) for j in range(size)], [(j, i) for j in range(size)]):
            counted = sorted(float(relevance[c]) for c in cells if is_negative(*c, relevance, image_ids))
            thresholds = plain_thresholds(counted) if counted else []
            for rung, threshold in enumerate(reversed(thresholds)):
                high = [similarity[c] for c in cells if float(relevance[c]) >= threshold]
                same = {
                    c for c in cells if c[0] == c[1] or (image_ids is not None and image_ids[c[0]] == image_ids[c[1]])
                }
                low = [similarity[c] for c in cells if float(relevance[c]) < threshold and c not in same]
                if high and low:
                    loss = loss + 0.25 / 2**rung * hinge(0.01 - min(high) + max(low))
    return loss


@given(batch=batches(smallest=2, labels="wide"))
@settings(max_examples=40, deadline=None)
def test_loss_and_gradient(batch):
    similarity, relevance, image_ids = batch
    similarity = untied(similarity)
    loss = AdaptiveLadderLoss(reduction="sum")
    value, gradient = value_and_gradient(loss, similarity, relevance, image_ids=image_ids)
    expected, slope = value_and_gradient(reference, similarity, relevance, image_ids)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-9)


def test_two_plain_groups_give_the_fixed_ladder():
    similarity = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
    group = torch.arange(6) // 3
    relevance = torch.where(group[:, None] == group[None, :], 0.7, 0.1).fill_diagonal_(1)
    adaptive = AdaptiveLadderLoss(levels=(2, 2))(similarity, relevance)
    torch.testing.assert_close(adaptive, LadderLoss(thresholds=(0.4,))(similarity, relevance))


def test_labels_that_do_not_count_are_left_out():
    labels = torch.tensor([[0.1, 0.12, 0.8, 0.82, 1.0]])
    counted = torch.tensor([[True, True, True, True, False]])
    thresholds = level_thresholds(labels, counted, 2, 4)
    assert thresholds[0, :2].tolist() == [-float("inf")] * 2
    assert float(thresholds[0, 2]) == pytest.approx(0.46)


def test_kmeans_gives_up_after_a_fixed_number_of_steps(monkeypatch):
    points = sorted(torch.randn(200, generator=torch.Generator().manual_seed(0)).tolist())
    settled, _ = kmeans(line_of(points), 4)
    monkeypatch.setattr(ladder, "_STEPS", 1)
    early, _ = kmeans(line_of(points), 4)
    assert not torch.equal(early, settled)
