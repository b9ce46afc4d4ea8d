"""Merged dual encoders, and the part that is solved by regression."""

import pytest
import torch
from torch.nn import functional

from bcls.features.backbones import load_backbone
from bcls.models import build, load
from bcls.models.combine import merge
from bcls.models.config import DualConfig
from bcls.models.layers import BlockLinear, Padded
from scripts.photo_parts import label_space_part
from tests.models import factories

TEXTS = ["a dog runs", "two men in the snow", "a boat"]


def dual(seed, **changes):
    torch.manual_seed(seed)
    return build(DualConfig(**{"image": "features", "features": 10, "width": 8, **changes}))


@pytest.mark.parametrize("kinds", [("linear", "mlp"), ("mlp", "linear")])
def test_scores_are_the_mean_of_the_models(kinds, tmp_path):
    models = [dual(seed, image_head=kinds[0], text_head=kinds[1]) for seed in range(3)]
    images = torch.randn(6, 10)
    merged = merge(models)
    wanted = torch.stack([model.similarity(images, TEXTS) for model in models]).mean(0)
    torch.testing.assert_close(merged.similarity(images, TEXTS), wanted)
    torch.testing.assert_close(merged.encode_images(images).norm(dim=1), torch.ones(6))
    assert (merged.config.heads, merged.config.width) == (3, 24)
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(load(tmp_path / "merged").similarity(images, TEXTS), wanted)


def test_merge_weights(tmp_path):
    models, images = [dual(seed) for seed in range(2)], torch.randn(6, 10)
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


def test_backbone_replaces_features(checkpoints):
    folder = str(checkpoints["vit"])
    images = [factories.image(seed=seed) for seed in range(2)]
    models = [dual(seed, features=16) for seed in range(2)]
    merged = merge(models, image=folder)
    backbone = load_backbone(folder)
    with torch.no_grad():
        features = backbone(torch.stack([backbone.prepare(one) for one in images])).mean((2, 3))
    wanted = torch.stack([model.similarity(features, TEXTS) for model in models]).mean(0)
    torch.testing.assert_close(merged.similarity(images, TEXTS), wanted, atol=1e-5, rtol=1e-4)


def test_merging_one_model_does_not_change_it():
    model, images = dual(0), torch.randn(2, 10)
    assert torch.equal(merge([model]).similarity(images, TEXTS), model.similarity(images, TEXTS))


def test_several_heads_are_trained_together_each_on_its_own_part():
    model = dual(0, heads=2)
    images, texts = model(model.prepare_images(torch.randn(4, 10)), model.prepare_texts(TEXTS))
    model.scores(images, texts)[0, 0].backward()
    assert model.text.head.mlp[2].weight.grad.abs().sum((1, 2)).min() > 0


def test_block_linear_layers_read_their_own_part():
    layer = BlockLinear(2, 3)
    given = torch.randn(5, 6)
    changed = torch.cat([given[:, :3], torch.randn(5, 3)], 1)
    assert torch.equal(layer(given)[:, :3], layer(changed)[:, :3])
    assert not torch.equal(layer(given)[:, 3:], layer(changed)[:, 3:])
    plain = given[:, :3] @ layer.weight[0].T + layer.bias[0]
    torch.testing.assert_close(layer(given)[:, :3], plain)


@pytest.mark.parametrize(
    ("models", "more", "message"),
    [
        (lambda: [dual(0), dual(1, width=16)], {}, "the same configuration"),
        (lambda: [dual(0, heads=2)], {}, "2 heads already"),
        (list, {}, "`models`: expected one model or more, got none"),
        (lambda: [dual(0), dual(1)], {"weights": [1.0]}, "`head_weights`: expected 2 numbers"),
        (lambda: [dual(0)], {"image": "efficientnet-lite0"}, "of different models"),
    ],
)
def test_models_that_do_not_fit_raise(models, more, message):
    with pytest.raises(ValueError, match=message):
        merge(models(), **more)


def test_heads_need_a_width_that_they_divide():
    with pytest.raises(ValueError, match="a divisor of the width 8"):
        dual(0, heads=3)
    with pytest.raises(ValueError, match="a head on each side"):
        dual(0, heads=2, text_head="none")


def features_model(width=384, **more):
    torch.manual_seed(0)
    return build(DualConfig(image="features", features=12, width=width, **more))


def data(images=40):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(images, 12, generator=draw)
    mix = torch.randn(12, 384, generator=draw)
    y = functional.normalize(
        x.repeat_interleave(2, 0) @ mix + 0.1 * torch.randn(2 * images, 384, generator=draw), dim=1
    )
    return x, y, torch.arange(images).repeat_interleave(2)


def test_it_is_ridge_regression_with_cosines():
    x, y, owner = data()
    part = label_space_part(features_model(), x, y, owner, ridge=0.5)
    means = (y[::2] + y[1::2]) / 2
    centred, target = x - x.mean(0), means - means.mean(0)
    gram = centred.T @ centred
    solved = torch.linalg.solve(gram + 0.5 * gram.diagonal().mean() * torch.eye(12), centred.T @ target)
    wanted = functional.normalize(centred @ solved, dim=1) @ functional.normalize(y - means.mean(0), dim=1).T
    found = part.similarity(x, Padded(y))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert (found.argmax(0) == owner).float().mean() > 0.9


def test_it_merges_with_trained_heads():
    x, y, owner = data()
    heads = features_model()
    part = label_space_part(heads, x, y, owner)
    both = merge([heads, part]).similarity(x, Padded(y))
    torch.testing.assert_close(both, (heads.similarity(x, Padded(y)) + part.similarity(x, Padded(y))) / 2)


@pytest.mark.parametrize(
    "model",
    [
        lambda: features_model(width=128),
        lambda: features_model(width=768, heads=2),
        lambda: features_model(text_head="none"),
    ],
)
def test_heads_that_cannot_hold_it_are_refused(model):
    with pytest.raises(ValueError, match="one head on each side with a width of at least 384"):
        label_space_part(model(), *data())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda owner: owner.clamp(max=38), "`image_of_caption`: expected a caption or more .* none for image 39"),
        (lambda owner: owner + 1, "`image_of_caption`: expected integers from 0 to 39, got 40"),
        (lambda owner: owner - 1, "`image_of_caption`: expected integers from 0 to 39, got -1"),
        (lambda owner: owner[:-1], "`image_of_caption`: expected an integer for each of 80 captions"),
        (lambda owner: owner.float(), "`image_of_caption`: expected an integer for each of 80 captions"),
    ],
)
def test_captions_without_an_image_and_images_without_a_caption(change, message):
    x, y, owner = data()
    with pytest.raises(ValueError, match=message):
        label_space_part(features_model(), x, y, change(owner))
