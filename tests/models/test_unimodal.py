"""Second heads and the loss between items of one modality."""

import pytest
import torch

from bcls.losses.soft_labels import soft_label_kl
from bcls.models import build
from bcls.models.combine import merge
from bcls.models.dual import UnimodalHeads
from bcls.models.loading import load
from tests.reference import unimodal as reference


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperatures", [(0.45, 1.0), (0.05, 0.3)])
def test_the_divergence_equals_the_transcription(temperatures):
    given = [draw(5, 5, seed=seed).tanh().requires_grad_() for seed in (1, 1)]
    labels = draw(5, 5, seed=2).tanh()
    value = soft_label_kl(given[0], labels, *temperatures)
    expected = reference.divergence(given[1], labels, *temperatures)
    assert value.shape == (5,)
    value.sum().backward()
    expected.backward()
    assert value.sum().item() == pytest.approx(expected.item(), abs=1e-9)
    torch.testing.assert_close(given[0].grad, given[1].grad, rtol=0, atol=1e-9)


def test_value_and_gradients_equal_the_transcription():
    heads = UnimodalHeads(4, 3).double()
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(draw(*parameter.shape, seed=5).abs().clamp(0.2, 0.9))
    vectors = [draw(6, 4, seed=seed).requires_grad_() for seed in (1, 2)]
    labels = [draw(6, 6, seed=seed).tanh() for seed in (3, 4)]
    leaves = [*vectors, *heads.parameters()]

    value = heads(*vectors, *labels)
    expected = reference.unimodal(
        [
            (vectors[side], head.weight, head.bias, labels[side], heads.temperatures[side])
            for side, head in enumerate((heads.image, heads.text))
        ]
    )
    assert value.item() == pytest.approx(expected.item(), abs=1e-9)
    for one, other in zip(torch.autograd.grad(value, leaves), torch.autograd.grad(expected, leaves), strict=True):
        assert other.abs().max() > 1e-4
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_learned_temperatures_stay_in_their_range_and_keep_their_gradient():
    heads = UnimodalHeads(4, 3).double()
    assert heads.temperatures.tolist() == pytest.approx([0.45, 0.45])
    with torch.no_grad():
        heads.temperatures.copy_(torch.tensor([0.01, 7.0]))
    labels = draw(5, 5, seed=3)
    heads(draw(5, 4, seed=1), draw(5, 4, seed=2), labels, labels.T).backward()
    assert heads.temperatures.tolist() == pytest.approx([0.1, 1.0])
    assert heads.temperatures.grad.abs().min() > 0


def dual(seed=0, **more):
    torch.manual_seed(seed)
    return build({"name": "dual", "image": "features", "features": 5, "width": 6, **more})


TEXTS = ["a dog", "two boats on the water"]


def test_second_heads_change_nothing_in_retrieval():
    plain, more, features = dual(), dual(unimodal=3), draw(4, 5).float()
    assert torch.equal(more.similarity(features, TEXTS), plain.similarity(features, TEXTS))
    assert not hasattr(plain, "unimodal")
    added = {name for name, _ in more.named_parameters()} - {name for name, _ in plain.named_parameters()}
    assert added == {f"unimodal.{name}" for name, _ in more.unimodal.named_parameters()}
    assert more.parameter_groups().keys() == plain.parameter_groups().keys()


def test_second_heads_are_saved_with_the_model(tmp_path):
    model = dual(unimodal=3)
    model.save_pretrained(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.config.unimodal == 3
    for name, value in model.trained_state().items():
        assert torch.equal(again.trained_state()[name], value)


def test_the_loss_reaches_the_heads_of_frozen_encoders():
    model = dual(unimodal=3)
    vectors = model(model.prepare_images(draw(2, 5).float()), model.prepare_texts(TEXTS))
    model.unimodal(*(one.values for one in vectors), torch.eye(2), torch.eye(2)).backward()
    assert model.image.head.linear.weight.grad.abs().max() > 0
    assert model.text.head.linear.weight.grad.abs().max() > 0


def test_merging_leaves_second_heads_out():
    plain, more = (merge([dual(seed, **extra) for seed in range(2)]) for extra in ({}, {"unimodal": 3}))
    features = draw(4, 5).float()
    assert more.config == plain.config
    assert torch.equal(more.similarity(features, TEXTS), plain.similarity(features, TEXTS))


@pytest.mark.parametrize("wrong", [-1, 1.5, "3"])
def test_a_wrong_width_is_reported(wrong):
    with pytest.raises(ValueError, match="unimodal`: expected a whole number"):
        dual(unimodal=wrong)


def test_other_models_have_no_second_heads():
    with pytest.raises(ValueError, match="unimodal"):
        build({"name": "vsepp", "words": 5, "unimodal": 3})
