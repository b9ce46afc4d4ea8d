"""Every loss equals its slow transcription from the paper, in value and gradient."""

import pytest
import torch
from hypothesis import given, settings

from bcls.losses import from_name
from tests.losses.factories import assert_equals_reference, batches, untied, value_and_gradient
from tests.reference import graded, kendall_loss, triplet

CASES = {
    "triplet": (triplet.triplet, [{}, {"margin": 0.0}]),
    "triplet-hn": (triplet.triplet_hard, [{}, {"margin": 0.5}]),
    "triplet-sn": (triplet.triplet_soft, [{}, {"gamma": 5.0, "lse": "mean"}, {"gamma": 500.0, "margin": 0.05}]),
    "infonce": (triplet.infonce, [{}, {"temperature": 0.5}]),
    "sigmoid": (triplet.sigmoid, [{}, {"scale": 3.0, "bias": -1.0}]),
    "kendall": (
        kendall_loss.kendall,
        [{}, {"alpha": 0.0}, {"alpha": 0.35, "margin": 0.1}, {"normalize": "active"}, {"alpha": 1.99}],
    ),
    "kendall-sw": (
        lambda *inputs, **named: kendall_loss.kendall_window(*inputs, mining="none", **named),
        [{}, {"alpha": 0.0, "beta": 0.3}, {"alpha": 0.25, "beta": 0.07}],
    ),
    "kendall-sw-hs": (
        kendall_loss.kendall_window,
        [{}, {"window_norm": "valid"}, {"alpha": 0.0, "beta": 0.5}, {"alpha": 0.3, "beta": 0.013}, {"beta": 1.8}],
    ),
    "ladder": (
        kendall_loss.ladder,
        [{}, {"thresholds": (0.6, -0.2), "margins": (0.1, 0.05, 0.02), "weights": (0.5, 0.125)}],
    ),
    "csa": (graded.csa, [{}, {"temperature": 0.1, "label_temperature": 0.2}]),
    "xclr": (graded.xclr, [{}, {"temperature": 0.5, "label_temperature": 1.0}]),
    "cwcl": (graded.cwcl, [{}, {"temperature": 0.5}]),
    "sndcg": (graded.sndcg, [{}, {"temperature": 0.2}]),
    "listmle": (graded.listmle, [{}, {"temperature": 0.1}, {"temperature": 0.001}]),
    "rnc": (graded.rnc, [{}, {"temperature": 1.0}, {"temperature": 0.001}]),
    "lambda": (graded.lambda_loss, [{}, {"weighting": "ndcg2++"}, {"weighting": "none", "sigma": 3.0}]),
    "smooth-ap": (graded.smooth_ap, [{}, {"temperature": 0.2, "threshold": 0.5}]),
    "recall": (graded.recall, [{}, {"temperature": 0.2, "threshold": 0.0, "ks": (1, 2), "k_temperature": 0.3}]),
}
PARAMETERS = [(name, arguments) for name, (_, variants) in CASES.items() for arguments in variants]


@pytest.mark.parametrize(("name", "arguments"), PARAMETERS, ids=lambda part: str(part))
@given(batch=batches())
@settings(max_examples=25, deadline=None)
def test_value_and_gradient(name, arguments, batch):
    assert_equals_reference(name, arguments, CASES[name][0], batch)


@pytest.mark.parametrize("name", ["triplet", "triplet-hn", "triplet-sn", "infonce", "sigmoid", "smooth-ap", "recall"])
@given(batch=batches())
@settings(max_examples=15, deadline=None)
def test_binary_losses_without_labels(name, batch):
    similarity, _, image_ids = batch
    value = from_name(name, reduction="sum")(similarity, image_ids=image_ids)
    expected = CASES[name][0](similarity, None, image_ids)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("window_norm", ["all", "valid"])
@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.75])
@given(batch=batches())
@settings(max_examples=25, deadline=None)
def test_beta_zero_is_the_limit_of_the_stride(alpha, window_norm, batch):
    similarity, relevance, _ = batch
    similarity = untied(similarity)
    arguments = {"alpha": alpha, "window_norm": window_norm}
    loss = from_name("kendall-sw-hs", beta=0, reduction="sum", **arguments)
    value, gradient = value_and_gradient(loss, similarity, relevance)
    expected, slope = value_and_gradient(kendall_loss.kendall_limit, similarity, relevance, **arguments)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weight", [0, 0.25, 2.0])
@given(batch=batches(smallest=2))
@settings(max_examples=25, deadline=None)
def test_bcls_is_the_sum_of_its_two_terms(weight, batch):
    similarity, relevance, image_ids = batch
    loss = from_name("bcls", weight=weight, lse="mean", reduction="sum")
    terms = loss.terms(similarity, relevance, image_ids=image_ids)
    binary = triplet.triplet_soft(similarity, relevance, image_ids, lse="mean")
    continuous = kendall_loss.kendall_window(similarity, relevance)
    torch.testing.assert_close(terms["binary"], binary, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(terms["continuous"], weight * continuous, rtol=1e-9, atol=1e-9)
