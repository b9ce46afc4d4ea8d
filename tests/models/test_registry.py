"""Models by name, and their settings with messages that help."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from bcls.models.config import MODELS, SafConfig, SgrafConfig, SgrConfig, VseppConfig, build, model_config, name_of
from tests.models import made

CONFIGS = {"vsepp": VseppConfig, "sgr": SgrConfig, "saf": SafConfig, "sgraf": SgrafConfig}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_survives_plain_values(name):
    config = CONFIGS[name](words=9, width=8)
    assert model_config(dataclasses.asdict(config)) == config
    assert model_config(config) is config
    assert config.name == name_of(config) == name


@pytest.mark.parametrize("name", CONFIGS)
def test_a_built_model_knows_what_it_was_made_from(name):
    model = made.model(name)
    assert model.config.words == len(made.VOCABULARY)
    again = build(model.as_dict(), vocabulary=made.VOCABULARY)
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
        ({"width": 3}, "`name`, one of vsepp"),
        (3, "a dict with `name`"),
        ({"name": "sgr", "step": 2}, "did you mean 'steps'"),
        ({"name": "saf", "steps": 2}, "expected one of 'name', 'words'"),
        ({"name": "vsepp", "width": "8"}, "`config.width`: expected a whole number, got '8'"),
        ({"name": "vsepp", "width": True}, "`config.width`"),
        ({"name": "vsepp", "width": None}, "`config.width`"),
        ({"name": "vsepp", "width": 0}, "`width`: expected a whole number not below 1"),
        ({"name": "vsepp", "pooling": "maxx"}, "did you mean 'max'"),
        ({"name": "vsepp", "dropout_words": 1}, "a share below 1"),
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
def test_wrong_configs(config, message):
    with pytest.raises(ValueError, match=message):
        model_config(config)


def test_another_dataclass_is_no_config():
    @dataclasses.dataclass(frozen=True)
    class Other:
        name: str = "vsepp"

    with pytest.raises(ValueError, match="the config of a model"):
        build(Other())


def test_words_must_agree():
    with pytest.raises(ValueError, match="`words`"):
        build({"name": "vsepp"})
    with pytest.raises(ValueError, match="got 7"):
        build({"name": "sgr", "words": 7}, vocabulary=made.VOCABULARY)


def test_weights_come_from_torch_generator():
    first, second = made.model("sgr", seed=5), made.model("sgr", seed=5)
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))


def test_settings_are_read_without_torch():
    code = "import sys, bcls.models; bcls.models.model_config({'name': 'sgr'}); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
