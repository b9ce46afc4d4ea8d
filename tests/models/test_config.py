"""Model configurations, the registry, and their error messages."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from bcls.models import build, check_features, load, register_model
from bcls.models.config import MODELS, DualConfig, SafConfig, SgrafConfig, SgrConfig, VseppConfig, model_config, name_of
from bcls.models.vsepp import VseppModel
from tests.models import factories

CONFIGS = {"vsepp": VseppConfig, "sgr": SgrConfig, "saf": SafConfig, "sgraf": SgrafConfig}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_survives_plain_values(name):
    config = CONFIGS[name](words=9, width=8)
    assert model_config(dataclasses.asdict(config)) == config
    assert model_config(config) is config
    assert config.name == name_of(config) == name


@pytest.mark.parametrize("name", CONFIGS)
def test_a_built_model_knows_what_it_was_made_from(name):
    model = factories.model(name)
    assert model.config.words == len(factories.VOCABULARY)
    again = build(model.as_dict(), vocabulary=factories.VOCABULARY)
    assert type(again) is type(model)
    assert {key: one.shape for key, one in again.state_dict().items()} == {
        key: one.shape for key, one in model.state_dict().items()
    }


def test_every_name_has_a_config():
    for name in MODELS:
        assert name_of(model_config({"name": name})) == name


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "vsep"}, "did you mean 'vsepp'"),
        ({"name": 3}, "choose one of these"),
        ({"name": "my-own"}, "import the module that registers it, with `--import MODULE`"),
        ({"width": 3}, "`name`, one of vsepp"),
        (3, "a dict with `name`"),
        ({"name": "sgr", "step": 2}, "did you mean 'steps'"),
        ({"name": "saf", "steps": 2}, "expected one of 'name', 'words'"),
        ({"name": "vsepp", "width": "8"}, "`config.width`: expected a whole number, got '8'"),
        ({"name": "vsepp", "width": True}, "`config.width`"),
        ({"name": "vsepp", "width": None}, "`config.width`"),
        ({"name": "vsepp", "width": 0}, "`width`: expected a whole number not below 1"),
        ({"name": "vsepp", "pooling": "maxx"}, "did you mean 'max'"),
        ({"name": "vsepp", "dropout_words": 1}, "a probability below 1"),
        ({"name": "vsepp", "finetune": True}, "a `backbone` to train"),
        ({"name": "sgr", "smooth": 0}, "`smooth`"),
        ({3: 1, "width": 3}, r"got only \['3', 'width'\]"),
        ({"name": "dual", "head_weights": 3}, "`config.head_weights`: expected a list, got 3"),
        ({"name": "dual", "head_weights": ["a", "b"]}, r"`config.head_weights\[0\]`: expected a number"),
        ({"name": "dual", "head_weights": [True]}, r"`config.head_weights\[0\]`"),
        ({"name": "dual", "lora_targets": "query"}, "`config.lora_targets`: expected a list"),
        ({"name": "dual", "lora_targets": [1]}, r"`config.lora_targets\[0\]`: expected a string"),
    ],
)
def test_wrong_configs_raise_an_error_that_names_the_key(config, message):
    with pytest.raises(ValueError, match=message):
        model_config(config)


def test_unregistered_dataclass_raises():
    @dataclasses.dataclass(frozen=True)
    class Other:
        name: str = "vsepp"

    with pytest.raises(ValueError, match="the configuration of a model"):
        build(Other())


def test_words_must_equal_the_vocabulary_size():
    with pytest.raises(ValueError, match="`words`"):
        build({"name": "vsepp"})
    with pytest.raises(ValueError, match="got 7"):
        build({"name": "sgr", "words": 7}, vocabulary=factories.VOCABULARY)


def test_weights_come_from_torch_generator():
    first, second = factories.model("sgr", seed=5), factories.model("sgr", seed=5)
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))


def test_settings_are_read_without_torch():
    code = "import sys, bcls.models; bcls.models.model_config({'name': 'sgr'}); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_dual_config_fills_in_defaults():
    plain = DualConfig()
    assert (plain.text, plain.image_head, plain.text_head, plain.text_pooling) == ("minilm", "linear", "mlp", "mean")
    clip = DualConfig(image="clip", model="x")
    assert (clip.text, clip.image_head, clip.text_head) == ("clip", "none", "none")
    assert DualConfig(text="gru").text_pooling == "last"


def test_dual_config_from_plain_values():
    config = model_config(
        {"name": "dual", "image": "features", "features": 8, "lora_targets": ["query"], "head_weights": [1]}
    )
    assert config == DualConfig(image="features", features=8, lora_targets=("query",), head_weights=(1.0,))
    with pytest.raises(ValueError, match="did you mean 'text_head'"):
        model_config({"name": "dual", "text_haed": "mlp"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image": "clip"}, "`model`: expected a CLIP or SigLIP checkpoint, got none"),
        ({"image": "clip", "model": "x", "text": "minilm"}, "`text`: expected clip together with"),
        ({"text": "clip"}, "`text`: expected clip together with"),
        ({"model": "x"}, "`model`: expected none without"),
        ({"image": "clip", "model": "x", "image_pooling": "gpo"}, "`image_pooling`: expected none with"),
        ({"image_view": "six-corp"}, "did you mean 'six-crop'"),
        ({"image": "clip", "model": "x", "image_view": "mirrored"}, "`image_view`: expected whole without a backbone"),
        ({"image": "features", "features": 8, "image_view": "mirrored"}, "`image_view`: expected whole without"),
        ({"tune_image": True, "image_view": "mirrored"}, "got mirrored with a trained backbone"),
        ({"image_pooling": "gpo", "image_view": "mirrored"}, "got gpo pooling"),
        ({"image": "features"}, "`features`: expected the width"),
        ({"image": "features", "features": 0}, "`features`: expected a whole number not below 1"),
        ({"image": "features", "features": 8, "tune_image": True}, "`tune_image`: expected false"),
        ({"features": 8}, "`features`: expected none without"),
        ({"image_head": "lienar"}, "did you mean 'linear'"),
        ({"image_pooling": "avg"}, "`image_pooling`: expected one of"),
        ({"text_pooling": "last"}, "`text_pooling`: expected one of 'mean', 'cls', 'gpo'"),
        ({"text": "gru", "text_pooling": "cls"}, "`text_pooling`: expected one of 'mean', 'last', 'gpo'"),
        ({"width": 0}, "`width`: expected a whole number not below 1"),
        ({"words": 0}, "`words`: expected a whole number not below 1"),
        ({"dropout_images": 1.0}, "`dropout_images`: expected a probability below 1"),
        ({"dropout_texts": -0.1}, "`dropout_texts`: expected a finite number not below 0"),
        ({"lora_rank": -1}, "`lora_rank`: expected a whole number not below 0"),
        ({"lora_rank": 4}, "`lora_rank`: expected an encoder to train"),
        ({"text": "gru", "tune_text": True, "lora_rank": 4}, "`lora_rank`: expected an encoder to train"),
        ({"tune_text": True, "lora_rank": 4, "lora_targets": ()}, "`lora_targets`: expected names"),
        ({"tune_text": True, "lora_rank": 4, "lora_alpha": 0}, "`lora_alpha`: expected a finite number above 0"),
        ({"head_weights": 3}, "`head_weights`: expected a sequence of numbers"),
        ({"heads": 2, "head_weights": ("a", "b")}, "`head_weights`: expected a finite number"),
        ({"heads": 2, "head_weights": (float("nan"), 1.0)}, "`head_weights`: expected a finite number"),
        ({"heads": 2, "head_weights": (0.0, 1.0)}, "`head_weights`: expected a finite number above 0"),
        ({"heads": 2, "head_weights": (1.0,)}, "`head_weights`: expected 2 numbers"),
        ({"lora_targets": "query"}, "`lora_targets`: expected a tuple of layer names"),
        ({"lora_targets": (1,)}, "`lora_targets`: expected a tuple of layer names"),
        ({"base_sha256": "00"}, "`base_sha256`: expected none without LoRA"),
    ],
)
def test_wrong_dual_configs_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        DualConfig(**settings)


@dataclasses.dataclass(frozen=True)
class OwnConfig:
    features: int = 5
    width: int = 6
    word_width: int = 4
    words: int | None = None


class OwnModel(VseppModel):
    def __init__(self, config, vocabulary=None):
        plain = dataclasses.asdict(config)
        super().__init__(VseppConfig(**plain), vocabulary)
        self.config = OwnConfig(**{key: getattr(self.config, key) for key in plain})


@pytest.mark.parametrize("by_path", [False, True])
def test_registered_model_is_built_saved_and_loaded_by_name(tmp_path, monkeypatch, by_path):
    monkeypatch.delitem(MODELS, "own", raising=False)
    classes = (f"{__name__}:OwnConfig", f"{__name__}:OwnModel") if by_path else (OwnConfig, OwnModel)
    register_model("own", *classes)
    register_model("own", *classes)  # as when its module is imported twice
    model = build({"name": "own", "width": 8}, vocabulary=factories.VOCABULARY)
    assert type(model) is OwnModel
    assert name_of(model.config) == "own"
    model.save_pretrained(tmp_path / "model")
    again = load(tmp_path / "model")
    assert torch.equal(again.encode_texts(factories.CAPTIONS), model.encode_texts(factories.CAPTIONS))
    with pytest.raises(ValueError, match="a name that is not registered, got 'own'"):
        register_model("own", OwnConfig, VseppModel)
    del MODELS["own"]


@pytest.mark.parametrize(
    ("config", "shape", "message"),
    [
        (
            SgrConfig(features=8),
            (10, 8),
            r"expected regions \(N, 36, 8\), got \(10, 8\), global vectors; extract regions",
        ),
        (SafConfig(features=8, regions=10), (10, 4, 6), r"expected regions \(N, R, 8\), got \(10, 4, 6\).* width 8"),
        (SgrafConfig(features=8), (10, 40, 8), "at most 36 regions"),
        (VseppConfig(features=8), (10, 6), r"expected features \(N, 8\) or \(N, R, 8\), got \(10, 6\)"),
        (DualConfig(image="features", features=8), (10, 6), "width 8"),
    ],
)
def test_features_of_another_shape_are_refused(config, shape, message):
    with pytest.raises(ValueError, match=f"`--features`: .*{message}"):
        check_features(config, shape, "--features")


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (SgrConfig(features=8), (10, 36, 8)),
        (SafConfig(features=8, regions=10), (10, 40, 8)),
        (VseppConfig(features=8), (10, 8)),
        (VseppConfig(features=8), (10, 3, 8)),
        (VseppConfig(backbone="efficientnet-lite0"), (10, 3)),
        (DualConfig(), (10, 3)),
        (OwnConfig(), (10, 3)),
    ],
)
def test_features_that_fit_or_are_not_used_pass(config, shape):
    check_features(config, shape)


def test_names_for_model_authors_are_imported_lazily():
    import bcls.models

    assert bcls.models.build_model is build
    assert bcls.models.load_model is load
    assert all(hasattr(bcls.models, name) for name in bcls.models.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        bcls.models.nothing  # noqa: B018
