"""With ``keep_epochs`` a run keeps the model of every epoch, as the validation saw it."""

import json

import pytest
import torch
from safetensors.torch import load_file

from bcls.training.setup import set_up
from bcls.training.start import train
from bcls.training.validate import validate
from tests.training.made import TinyModel, make_data, settings


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("keep") / "data")


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_each_kept_model_has_the_figures_of_its_epoch(data, tmp_path, ema):
    config = settings(data, tmp_path / "run", epochs=3, keep_epochs=True, ema=ema)
    result = train(config, model=TinyModel())
    kept = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in kept.iterdir()) == ["best", "epoch-1", "epoch-2", "epoch-3", "last"]
    model = TinyModel()
    looking = set_up(settings(data, tmp_path / "other"), model)
    for epoch, figures in enumerate(result.history, start=1):
        model.load_trained_state(weights(kept / f"epoch-{epoch}"))
        assert validate(model, looking.validation, looking.learner.loss) == figures
    looking.pool.shutdown()
    best = weights(kept / "best")
    assert all(torch.equal(best[name], value) for name, value in weights(kept / f"epoch-{result.best_epoch}").items())
    assert not torch.equal(weights(kept / "epoch-1")["words.weight"], weights(kept / "epoch-2")["words.weight"])


def test_without_it_nothing_is_kept_and_a_continuation_may_begin_to(data, tmp_path):
    class Stops(TinyModel):
        steps = 0

        def forward(self, images, texts):
            self.steps += 1
            if self.steps == 5:
                raise ValueError("stop here")
            return super().forward(images, texts)

    with pytest.raises(ValueError, match="stop here"):
        train(settings(data, tmp_path / "run", epochs=2, save_every=2), model=Stops())
    kept = tmp_path / "run" / "checkpoints"
    assert [path.name for path in kept.iterdir()] == ["last"]
    train(settings(data, tmp_path / "run", epochs=2, save_every=2, keep_epochs=True, resume=True), model=TinyModel())
    assert sorted(path.name for path in kept.iterdir()) == ["best", "epoch-1", "epoch-2", "last"]
    state = json.loads((kept / "last" / "training.json").read_text())
    assert state["progress"]["finished"]
