"""The loss from its settings, and the learning rate schedule."""

import pytest
import torch

from bcls.losses import BCLSLoss, SumLoss
from bcls.training.config import TrainConfig
from bcls.training.optimization import all_negatives, clamp_learned, make_loss, make_optimizer, rate_at, reset_state


def test_names_and_arguments():
    loss = make_loss({"name": "bcls", "alpha": 0.1, "reduction": "sum"})
    assert isinstance(loss, BCLSLoss)
    assert loss.continuous.alpha == 0.1
    assert loss.reduction == "sum"


@pytest.mark.parametrize("spelling", [{"infonce.temperature": 0.07}, {"infonce": {"temperature": 0.07}}])
def test_parts_of_a_sum_are_addressed(spelling):
    loss = make_loss({"name": "infonce+kendall-sw-hs", **spelling})
    assert isinstance(loss, SumLoss)
    assert loss.parts[0].temperature == 0.07


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "bcsl"}, "did you mean 'bcls'"),
        ({"name": "bcls", "alhpa": 0.1}, "did you mean 'alpha'"),
        ({"name": "bcls", "learn_temperature": True}, "infonce, sigmoid"),
        ({"name": "infonce", "learn_temperatur": True}, "did you mean 'learn_temperature'"),
        ({"name": "infonce", "learn_temperature": "yes"}, "true or false"),
    ],
)
def test_errors_suggest_the_closest_name(settings, message):
    with pytest.raises(ValueError, match=message):
        make_loss(settings)


def test_a_learned_temperature_starts_at_that_of_the_model():
    loss = make_loss({"name": "infonce+kendall-sw-hs", "learn_temperature": True}, initial_temperature=0.02)
    (parameter,) = loss.parameters()
    assert parameter.item() == pytest.approx(0.02)
    given = make_loss({"name": "infonce", "learn_temperature": True, "temperature": 0.1}, initial_temperature=0.02)
    assert given.temperature.item() == pytest.approx(0.1)
    with torch.no_grad():
        given.temperature.fill_(-1.0)
    clamp_learned(given)
    assert given.temperature.item() == pytest.approx(0.01)


def test_scale_and_bias_of_sigmoid_are_learned():
    loss = make_loss({"name": "sigmoid", "learn_temperature": True})
    assert sorted(name for name, _ in loss.named_parameters()) == ["bias", "scale"]
    clamp_learned(loss)
    assert loss.bias.item() == -10.0


def test_scale_and_bias_start_at_those_of_the_model():
    settings = {"name": "sigmoid", "learn_temperature": True}
    theirs = make_loss(settings, initial_temperature=0.02, initial_bias=-12.0)
    assert (theirs.scale.item(), theirs.bias.item()) == pytest.approx((50.0, -12.0))
    given = make_loss({**settings, "bias": -3.0}, initial_temperature=0.02, initial_bias=-12.0)
    assert (given.scale.item(), given.bias.item()) == pytest.approx((50.0, -3.0))
    alone = make_loss(settings, initial_temperature=0.01)  # CLIP's, which has no bias
    assert (alone.scale.item(), alone.bias.item()) == pytest.approx((10.0, -10.0))


def test_the_first_epochs_keep_margin_and_reduction():
    loss = all_negatives({"name": "triplet-hn", "margin": 0.3, "reduction": "sum"})
    assert (loss.margin, loss.reduction) == (0.3, "sum")


@pytest.mark.parametrize("spelling", [{"triplet-sn.margin": 0.5}, {"triplet-sn": {"margin": 0.5}}])
def test_the_first_epochs_keep_the_margin_of_a_part(spelling):
    loss = all_negatives({"name": "triplet-sn+kendall", **spelling, "kendall.reduction": "sum"})
    assert (loss.margin, loss.reduction) == (0.5, "sum")


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_an_optimizer_that_was_reset_steps_as_a_new_one(kind):
    config = TrainConfig(optimizer=kind, weight_decay=0.1)
    used, new = (torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    optimizer = make_optimizer({"all": [used]}, config, used.device)
    for number in range(5):
        used.grad = torch.full_like(used, 10.0 - number)
        optimizer.step()
    tensors = list(optimizer.state[used].values())
    reset_state(optimizer)
    with torch.no_grad():
        used.fill_(1)
    other = make_optimizer({"all": [new]}, config, new.device)
    for number in range(3):
        used.grad, new.grad = (torch.full_like(new, number - 0.5) for _ in range(2))
        optimizer.step()
        other.step()
    assert torch.equal(used, new)
    # A recorded step reads these tensors.
    assert all(one is two for one, two in zip(tensors, optimizer.state[used].values(), strict=True))


def rates(config, steps=10):
    return [rate_at(epoch, step, steps, config) for epoch in range(config.epochs) for step in range(steps)]


def test_steps_drop_after_their_epochs():
    found = rates(TrainConfig(epochs=4, drops=[1, 3], drop=0.1))
    assert found == pytest.approx([1.0] * 10 + [0.1] * 20 + [0.01] * 10)


def test_warm_up_rises_to_one_and_starts_above_zero():
    found = rates(TrainConfig(epochs=3, schedule="constant", warmup=1.5))
    assert found[0] == pytest.approx(1 / 15)
    assert found[:15] == sorted(found[:15])
    assert found[14:] == pytest.approx([1.0] * 16)


def test_the_cosine_ends_near_zero():
    found = rates(TrainConfig(epochs=5, schedule="cosine", warmup=1))
    assert found[10] == 1.0
    assert found[10:] == sorted(found[10:], reverse=True)
    assert 0 < found[-1] < 0.01
    assert found[30] == pytest.approx(0.5)
