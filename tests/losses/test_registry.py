"""Losses by name, registration, sums, terms and parts."""

import inspect
import sys
from functools import partial

import pytest
import torch
from torch import nn

import bcls
from bcls import losses
from bcls.losses import (
    LOSSES,
    BCLSLoss,
    InfoNCELoss,
    KendallWindowLoss,
    RetrievalLoss,
    SAMLoss,
    SigmoidLoss,
    SumLoss,
    TripletLoss,
    from_name,
    register_loss,
)
from tests.losses.factories import batch

#: Arguments other than the defaults, each of which changes the loss.
CHANGED = {
    "triplet": {"margin": 0.3},
    "triplet-hn": {"margin": 0.3},
    "triplet-sn": {"margin": 0.3, "gamma": 20.0, "lse": "mean"},
    "kendall": {"alpha": 0.1, "margin": 0.1, "normalize": "active"},
    "kendall-sw-hs": {"alpha": 0.1, "beta": 0.05, "window_norm": "valid"},
    "bcls": {"alpha": 0.1, "beta": 0.05, "gamma": 20.0, "margin": 0.3, "weight": 2.0, "lse": "mean"},
    "ladder": {"thresholds": (0.2,), "margins": (0.3, 0.05), "weights": (0.5,)},
    "ladder-adaptive": {"levels": (3, 3), "margin": 0.3, "rung_margin": 0.1, "weight": 0.5},
    "sam": {"temperature": 2.0, "sampling": "hard", "weight": 2.0},
    "infonce": {"temperature": 0.5},
    "sigmoid": {"scale": 3.0, "bias": -1.0},
    "csa": {"temperature": 0.2, "label_temperature": 0.5},
    "xclr": {"temperature": 0.2, "label_temperature": 0.5},
    "cwcl": {"temperature": 0.2},
    "sndcg": {"temperature": 0.2},
    "listmle": {"temperature": 0.2},
    "rnc": {"temperature": 0.2},
    "lambda": {"weighting": "ndcg2++", "sigma": 2.0},
    "smooth-ap": {"temperature": 0.2, "threshold": 0.5},
    "recall": {"temperature": 0.2, "threshold": 0.5, "ks": (1, 2), "k_temperature": 0.5},
}


class Plain(nn.Module):
    """A loss that is no RetrievalLoss."""

    def forward(self, similarity, relevance=None, *, image_ids=None):
        return ((similarity - relevance) ** 2).mean()


@pytest.mark.parametrize("name", LOSSES)
def test_terms_sum_to_the_loss(name):
    similarity, relevance = batch(12)
    loss = from_name(name)
    terms = loss.terms(similarity, relevance, image_ids=torch.arange(12))
    torch.testing.assert_close(sum(terms.values()), loss(similarity, relevance, image_ids=torch.arange(12)))


def function_of(name):
    """The function beside the class of a registered loss."""
    make = LOSSES[name]
    kind = make.func if isinstance(make, partial) else make
    found = [
        function
        for _, function in inspect.getmembers(sys.modules[kind.__module__], inspect.isfunction)
        if (function.__doc__ or "").startswith(f":class:`{kind.__name__}` as a function")
    ]
    assert len(found) == 1
    return kind, found[0]


@pytest.mark.parametrize("name", LOSSES)
def test_functions_equal_modules(name):
    _, function = function_of(name)
    if isinstance(LOSSES[name], partial):
        function = partial(function, **LOSSES[name].keywords)
    similarity, relevance = batch(12)
    ids = torch.arange(12) // 2
    changed = {**CHANGED.get(name, {}), "reduction": "sum"}
    expected = from_name(name, **changed)(similarity, relevance, image_ids=ids)
    assert function(similarity, relevance, image_ids=ids, **changed) == expected
    # Every argument reaches the loss.
    for argument in CHANGED.get(name, {}):
        kept = {key: value for key, value in changed.items() if key != argument}
        assert function(similarity, relevance, image_ids=ids, **kept) != expected


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


def test_compute_must_be_written():
    with pytest.raises(NotImplementedError):
        losses.RetrievalLoss()(torch.eye(2))


def test_settings_show_in_the_representation():
    assert repr(KendallWindowLoss(beta=0)) == (
        "KendallWindowLoss(reduction='mean', alpha=0.2, beta=0.0, mining='hard', window_norm='all')"
    )
    shown = repr(from_name("infonce+bcls", weights=(1, 2), reduction="sum"))
    assert "names=['infonce', 'bcls'], weights=[1.0, 2.0]" in shown
    assert "reduction='sum'" in shown.splitlines()[1]
    assert "gamma=50.0" in shown


def test_the_function_keeps_alpha_and_margin_apart():
    similarity, relevance = batch(12)
    given = {"alpha": 0.1, "margin": 0.3}
    value = losses.kendall_loss(similarity, relevance, **given)
    torch.testing.assert_close(value, losses.KendallLoss(**given)(similarity, relevance))
    assert value != losses.kendall_loss(similarity, relevance, alpha=0.3, margin=0.1)


@pytest.mark.parametrize("name", LOSSES)
def test_functions_have_the_defaults_of_their_modules_and_are_exported(name):
    module, pure = function_of(name)
    assert {module.__name__, pure.__name__} <= set(losses.__all__)
    function = {key: one.default for key, one in inspect.signature(pure).parameters.items()}
    expected = {key: one.default for key, one in inspect.signature(module).parameters.items()}
    assert {key: value for key, value in function.items() if key in expected} == {
        key: value for key, value in expected.items() if key in function
    }
    assert set(function) - set(expected) == {"similarity", "relevance", "image_ids"}


class Squared(RetrievalLoss):
    """A loss of a user."""

    def __init__(self, power=2.0, reduction="mean"):
        super().__init__(reduction)
        self.power = power

    def compute(self, batch):
        value = ((batch.similarity - batch.labels).abs() ** self.power).sum()
        return {"squared": losses.reduce(value, batch.size, self.reduction)}


def test_a_loss_that_is_added_to_the_package_is_public(monkeypatch):
    monkeypatch.setattr(losses, "RegressionLoss", TripletLoss, raising=False)
    assert bcls.RegressionLoss is TripletLoss
    with pytest.raises(AttributeError, match="MissingLoss"):
        bcls.MissingLoss  # noqa: B018


def test_a_registered_loss_is_built_by_name(monkeypatch):
    monkeypatch.setattr("bcls.losses.registry.LOSSES", dict(LOSSES))
    register_loss("squared", Squared)
    register_loss("squared", Squared)  # again, as when a module is imported twice
    similarity, relevance = batch(4)
    assert from_name("squared", power=1.0).power == 1.0
    both = from_name("squared+infonce", **{"squared.power": 3.0})
    assert set(both.terms(similarity, relevance)) == {"squared", "infonce"}
    with pytest.raises(ValueError, match=r"`pwoer`: .* loss 'squared'.* did you mean 'power'"):
        from_name("squared", pwoer=1)


def test_a_loss_that_is_defined_again_replaces_the_former_one(monkeypatch):
    monkeypatch.setattr("bcls.losses.registry.LOSSES", dict(LOSSES))

    def define(offset):
        class Again(RetrievalLoss):
            def compute(self, batch):
                return {"again": batch.similarity.sum() + offset}

        return Again

    register_loss("again", define(0))
    register_loss("again", define(5))  # as when a cell of a notebook runs twice
    assert from_name("again")(torch.zeros(2, 2)) == 5


def test_a_missing_value_is_named(monkeypatch):
    monkeypatch.setattr("bcls.losses.registry.LOSSES", dict(LOSSES))

    class Power(RetrievalLoss):
        def __init__(self, power, *unused, reduction="mean", **other):
            super().__init__(reduction)
            self.power = power

        def compute(self, batch):
            return {"power": (batch.similarity**self.power).sum()}

    register_loss("power", Power)
    assert from_name("power", power=3).power == 3
    with pytest.raises(ValueError, match="`power`: expected a value, which the loss 'power' requires, got none"):
        from_name("power")
    with pytest.raises(ValueError, match=r"`power\.power`: expected a value"):
        from_name("infonce+power")


@pytest.mark.parametrize("result", [torch.zeros(()), {}])
def test_compute_must_return_named_terms(result):
    class Unnamed(RetrievalLoss):
        def compute(self, batch):
            return result

    for loss in (Unnamed(), SumLoss({"mine": Unnamed()}), BCLSLoss(binary=Unnamed())):
        with pytest.raises(ValueError, match=r"`Unnamed\.compute`: expected a dict of named scalars as its result"):
            loss(torch.eye(2), torch.eye(2))


@pytest.mark.parametrize(
    ("name", "loss", "says"),
    [
        ("a+b", Squared, r"`name`: expected a name without '\+', '\.' and outer spaces, got 'a\+b'"),
        ("a.b", Squared, "`name`"),
        ("", Squared, "`name`"),
        (" mine", Squared, "`name`: expected a name without .*, got .* mine"),
        (3, Squared, "`name`"),
        ("mine", 3, "`loss`: expected a subclass of RetrievalLoss, got 3"),
        ("mine", Squared(), r"`loss`: expected a subclass of RetrievalLoss, got Squared\(.*pass the class itself"),
        ("triplet", Squared, "`name`: expected a name that is not registered yet, got 'triplet'"),
    ],
)
def test_bad_registrations_are_named(name, loss, says):
    with pytest.raises(ValueError, match=says):
        register_loss(name, loss)
    assert LOSSES["triplet"] is TripletLoss


def test_a_sum_of_losses_on_another_scale():
    similarity, relevance = batch(6)
    loss = SumLoss({"sam": SAMLoss()})
    assert not loss.bounded
    assert loss(similarity, relevance * 10) == SAMLoss()(similarity, relevance * 10)
