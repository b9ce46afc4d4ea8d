"""Several dual encoders as one."""

import pytest
import torch

from bcls.features.backbones import load_backbone
from bcls.models.combine import merge
from bcls.models.config import DualConfig, build
from bcls.models.dual_heads import SideBySide
from bcls.models.folder import load
from tests.models.dual.made import picture

TEXTS = ["a dog runs", "two men in the snow", "a boat"]


def made(seed, **changes):
    torch.manual_seed(seed)
    return build(DualConfig(**{"image": "features", "features": 10, "width": 8, **changes}))


@pytest.mark.parametrize("kinds", [("linear", "mlp"), ("mlp", "linear")])
def test_scores_are_the_mean_of_the_models(kinds, tmp_path):
    models = [made(seed, image_head=kinds[0], text_head=kinds[1]) for seed in range(3)]
    images = torch.randn(6, 10)
    merged = merge(models)
    wanted = torch.stack([model.similarity(images, TEXTS) for model in models]).mean(0)
    torch.testing.assert_close(merged.similarity(images, TEXTS), wanted)
    torch.testing.assert_close(merged.encode_images(images).norm(dim=1), torch.ones(6))
    assert (merged.config.heads, merged.config.width) == (3, 24)
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(load(tmp_path / "merged").similarity(images, TEXTS), wanted)


def test_weights_count(tmp_path):
    models, images = [made(seed) for seed in range(2)], torch.randn(6, 10)
    merged = merge(models, [3.0, 1.0])
    one, other = (model.similarity(images, TEXTS) for model in models)
    torch.testing.assert_close(merged.similarity(images, TEXTS), 0.75 * one + 0.25 * other)
    torch.testing.assert_close(merged.encode_texts(TEXTS).norm(dim=1), torch.ones(3))
    merged.save_pretrained(tmp_path / "merged")
    again = load(tmp_path / "merged")
    assert again.config == merged.config
    torch.testing.assert_close(again.similarity(images, TEXTS), merged.similarity(images, TEXTS))
    with pytest.raises(ValueError, match="`head_weights`: expected a finite number above 0"):
        merge(models, [1.0, 0.0])


def test_a_backbone_in_the_place_of_features(checkpoints):
    folder = str(checkpoints["vit"])
    pictures = [picture(seed=seed) for seed in range(2)]
    models = [made(seed, features=16) for seed in range(2)]
    merged = merge(models, image=folder)
    backbone = load_backbone(folder)
    with torch.no_grad():
        features = backbone(torch.stack([backbone.prepare(one) for one in pictures])).mean((2, 3))
    wanted = torch.stack([model.similarity(features, TEXTS) for model in models]).mean(0)
    torch.testing.assert_close(merged.similarity(pictures, TEXTS), wanted, atol=1e-5, rtol=1e-4)


def test_one_model_stays_as_it_is():
    model, images = made(0), torch.randn(2, 10)
    assert torch.equal(merge([model]).similarity(images, TEXTS), model.similarity(images, TEXTS))


def test_several_heads_are_trained_together_each_on_its_own_part():
    model = made(0, heads=2)
    images, texts = model(model.prepare_images(torch.randn(4, 10)), model.prepare_texts(TEXTS))
    model.scores(images, texts)[0, 0].backward()
    assert model.text.head.mlp[2].weight.grad.abs().sum((1, 2)).min() > 0


def test_layers_side_by_side_read_their_own_part():
    layer = SideBySide(2, 3)
    given = torch.randn(5, 6)
    changed = torch.cat([given[:, :3], torch.randn(5, 3)], 1)
    assert torch.equal(layer(given)[:, :3], layer(changed)[:, :3])
    assert not torch.equal(layer(given)[:, 3:], layer(changed)[:, 3:])
    plain = given[:, :3] @ layer.weight[0].T + layer.bias[0]
    torch.testing.assert_close(layer(given)[:, :3], plain)


@pytest.mark.parametrize(
    ("models", "more", "message"),
    [
        (lambda: [made(0), made(1, width=16)], {}, "the same settings"),
        (lambda: [made(0, heads=2)], {}, "2 heads already"),
        (list, {}, "`models`: expected one model or more, got none"),
        (lambda: [made(0), made(1)], {"weights": [1.0]}, "`head_weights`: expected 2 numbers"),
        (lambda: [made(0)], {"image": "efficientnet-lite0"}, "of two models"),
    ],
)
def test_what_does_not_fit_is_refused(models, more, message):
    with pytest.raises(ValueError, match=message):
        merge(models(), **more)


def test_heads_need_a_width_that_they_divide():
    with pytest.raises(ValueError, match="a divisor of the width 8"):
        made(0, heads=3)
    with pytest.raises(ValueError, match="a head on each side"):
        made(0, heads=2, text_head="none")
