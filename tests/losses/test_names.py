"""Losses by name, sums, terms and parts of one's own."""

import pytest
import torch
from torch import nn

from bcls import losses
from bcls.losses import BCLSLoss, InfoNCELoss, KendallWindowLoss, SAMLoss, SigmoidLoss, SumLoss, from_name
from tests.losses.test_fast_paths import batch


class Plain(nn.Module):
    """Somebody's loss that knows nothing of ours."""

    def forward(self, similarity, relevance=None, *, image_ids=None):
        return ((similarity - relevance) ** 2).mean()


@pytest.mark.parametrize("name", losses.LOSSES)
def test_terms_sum_to_the_loss(name):
    similarity, relevance = batch(12)
    loss = from_name(name)
    terms = loss.terms(similarity, relevance, image_ids=torch.arange(12))
    torch.testing.assert_close(sum(terms.values()), loss(similarity, relevance, image_ids=torch.arange(12)))
    assert set(terms) == {"binary", "continuous"} or len(terms) == 1


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("triplet", losses.triplet_loss),
        ("triplet-hn", losses.triplet_hard_loss),
        ("triplet-sn", losses.triplet_soft_loss),
        ("kendall", losses.kendall_loss),
        ("kendall-sw-hs", losses.kendall_window_loss),
        ("bcls", losses.bcls_loss),
        ("ladder", losses.ladder_loss),
        ("ladder-adaptive", losses.adaptive_ladder_loss),
        ("sam", losses.sam_loss),
        ("infonce", losses.infonce_loss),
        ("sigmoid", losses.sigmoid_loss),
    ],
)
def test_functions_equal_modules(name, function):
    similarity, relevance = batch(12)
    ids = torch.arange(12) // 2
    expected = from_name(name, reduction="sum")(similarity, relevance, image_ids=ids)
    assert function(similarity, relevance, image_ids=ids, reduction="sum") == expected


def test_sums_by_name():
    similarity, relevance = batch(12)
    loss = from_name(
        "infonce + bcls", weights=(1.0, 3.0), reduction="sum", **{"infonce.temperature": 0.5, "bcls.alpha": 0.1}
    )
    terms = loss.terms(similarity, relevance)
    assert set(terms) == {"infonce", "bcls.binary", "bcls.continuous"}
    expected = InfoNCELoss(0.5, "sum")(similarity) + 3 * BCLSLoss(0.1, reduction="sum")(similarity, relevance)
    torch.testing.assert_close(loss(similarity, relevance), expected)


def test_a_single_name_takes_addressed_arguments_too():
    assert from_name("infonce", **{"infonce.temperature": 0.5}).temperature == 0.5


def test_parts_of_ones_own():
    similarity, relevance = batch(6)
    loss = BCLSLoss(binary=InfoNCELoss(), continuous=Plain(), weight=2.0)
    terms = loss.terms(similarity, relevance)
    assert terms["binary"] == InfoNCELoss()(similarity, relevance)
    assert terms["continuous"] == 2 * Plain()(similarity, relevance)
    both = SumLoss({"mine": Plain(), "order": KendallWindowLoss()})
    assert set(both.terms(similarity, relevance)) == {"mine", "order"}
    only = SumLoss({"mine": Plain()})
    assert only(similarity, relevance) == Plain()(similarity, relevance)


def test_learned_temperature_scale_and_bias():
    similarity, relevance = batch(6)
    infonce = InfoNCELoss(nn.Parameter(torch.tensor(0.1)))
    sigmoid = SigmoidLoss(nn.Parameter(torch.tensor(10.0)), nn.Parameter(torch.tensor(-10.0)))
    for loss in (infonce, sigmoid):
        loss(similarity, relevance).backward()
        assert all(parameter.grad is not None and parameter.grad != 0 for parameter in loss.parameters())
    assert len(list(infonce.parameters())) == 1
    assert len(list(sigmoid.parameters())) == 2


def test_sam_random_draws_from_torchs_generator():
    similarity, relevance = batch(30)
    loss = SAMLoss(sampling="random", temperature=1.0)
    torch.manual_seed(1)
    first = loss(similarity, relevance)
    torch.manual_seed(1)
    assert loss(similarity, relevance) == first
    assert loss(similarity, relevance) != first


def test_sam_random_never_draws_a_positive():
    """Only one negative an anchor is left: whatever is drawn, the loss equals the mined ones."""
    similarity, relevance = batch(4)
    ids = torch.tensor([0, 0, 0, 1])
    values = {float(SAMLoss(sampling="random")(similarity, relevance, image_ids=ids)) for _ in range(20)}
    # Captions 0 to 2 have one negative each; image and caption 3 have three.
    assert len(values) <= 9


def test_compute_must_be_written():
    with pytest.raises(NotImplementedError):
        losses.RetrievalLoss()(torch.eye(2))
