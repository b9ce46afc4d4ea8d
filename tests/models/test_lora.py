"""LoRA: trained and stored parameters, and the encoders that adapters belong to."""

import json

import pytest
import torch

from bcls.models import load
from bcls.models.config import DualConfig
from bcls.models.dual import DualModel
from tests.models import factories

IMAGES = [factories.image(seed=0), factories.image(seed=1)]
TEXTS = factories.TEXTS[:2]


def config(folder, **settings):
    return DualConfig(image="clip", model=str(folder), tune_image=True, tune_text=True, lora_rank=2, **settings)


def step(model):
    """One step of training that changes what can be changed."""
    parameters = [one for group in model.parameter_groups().values() for one in group]
    for _ in range(2):  # the first step moves B alone, since it starts at zero and stops A's gradient
        codes = model(model.prepare_images(IMAGES), model.prepare_texts(TEXTS))
        model.scores(*codes).diagonal().sum().backward()
        with torch.no_grad():
            for one in parameters:
                one -= 0.5 * one.grad
                one.grad = None


def test_nothing_changes_before_training(checkpoints):
    plain = DualModel(DualConfig(image="clip", model=str(checkpoints["clip"])))
    adapted = DualModel(config(checkpoints["clip"]))
    torch.testing.assert_close(adapted.similarity(IMAGES, TEXTS), plain.similarity(IMAGES, TEXTS))


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_only_adapters_are_trained_and_stored(kind, checkpoints):
    model = DualModel(config(checkpoints[kind]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fresh = model.similarity(IMAGES, TEXTS)
    step(model)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(".lora_" in name for name in changed)
    stored = {name for name in model.trained_state() if not name.startswith("logit_")}
    assert changed <= stored
    assert all(".lora_" in name for name in stored)
    again = DualModel(model.config)
    again.load_trained_state(model.trained_state())
    torch.testing.assert_close(again.similarity(IMAGES, TEXTS), model.similarity(IMAGES, TEXTS))
    assert not torch.allclose(fresh, model.similarity(IMAGES, TEXTS))


def test_other_encoder_weights_raise(checkpoints, tmp_path):
    model = DualModel(config(checkpoints["clip"]))
    other = factories.clip(tmp_path / "other", seed=1)
    assert model.config.base_sha256 is not None
    with pytest.raises(ValueError, match=r"`base_sha256`: expected the encoders with which the adapters were trained"):
        DualModel(config(other, base_sha256=model.config.base_sha256))


def test_one_tower_alone(checkpoints):
    only = DualConfig(image="clip", model=str(checkpoints["clip"]), tune_text=True, lora_rank=2)
    model = DualModel(only)
    assert list(model.parameter_groups()) == ["text encoder"]
    assert not any(name.startswith("image") for name in model.trained_state())
    assert (model.frozen_images, model.frozen_text) == (True, False)


def test_beside_a_text_model(checkpoints):
    settings = {"image": "features", "features": 5, "text": str(checkpoints["bert"]), "width": 6}
    model = DualModel(DualConfig(**settings, tune_text=True, lora_rank=2, lora_targets=("query", "value")))
    assert set(model.parameter_groups()) == {"text encoder", "heads"}
    names = {name.split(".")[1] if ".lora_" in name else "kept" for name in model.trained_state()}
    assert names == {"encoder", "kept"}
    assert not any(name.startswith("text.encoder") and ".lora_" not in name for name in model.trained_state())


def test_unknown_layers_raise(checkpoints):
    with pytest.raises(ValueError, match=r"`lora_targets`: expected names of linear layers .*it has .*q_proj"):
        DualModel(config(checkpoints["clip"], lora_targets=("query",)))


def test_rank_that_differs_from_the_weights_raises(checkpoints, tmp_path):
    model = DualModel(config(checkpoints["clip"]))
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(load(tmp_path / "model").encode_texts(TEXTS), model.encode_texts(TEXTS))
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"lora_rank": 10**13}), encoding="utf-8")
    with pytest.raises(ValueError, match="the sizes of the weights"):
        load(tmp_path / "model")
