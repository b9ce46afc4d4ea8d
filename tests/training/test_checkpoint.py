"""Checkpoints: damaged files, memory format of restored state, and the moving average of the weights."""

import json

import pytest
import torch

from bcls.data.vocabulary import SPECIALS, Vocabulary
from bcls.models import build
from bcls.training.checkpoint import Learner, MovingAverage, Progress, decay_for, read_state, restore, write_checkpoint
from bcls.training.setup import set_up
from tests.training.factories import TinyModel, make_data, settings

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
WHOLE = {"version": 1, "progress": {}, "settings": {}, "data": {}, "scaler": None}


def test_a_complete_state_is_read(tmp_path):
    (tmp_path / "training.json").write_text(json.dumps(WHOLE), encoding="utf-8")
    assert read_state(tmp_path) == WHOLE


@pytest.mark.parametrize("key", ["progress", "settings", "data"])
@pytest.mark.parametrize("value", [None, [], "missing"])
def test_a_missing_part_is_reported_with_the_file(tmp_path, key, value):
    state = {name: one for name, one in WHOLE.items() if name != key}
    if value != "missing":
        state[key] = value
    (tmp_path / "training.json").write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"training\.json`: expected a mapping `{key}`"):
        read_state(tmp_path)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, GPU])])
def test_restored_state_has_the_memory_format_of_its_parameter(tmp_path, device):
    convolution = torch.nn.Conv2d(3, 8, 3).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(convolution.parameters(), lr=0.1, fused=True)
    model = build({"name": "vsepp", "features": 4, "width": 4}, vocabulary=Vocabulary((*SPECIALS, "dog")))
    learner = Learner(model=model, loss=torch.nn.Identity(), optimizer=optimizer)
    _step(convolution, optimizer)
    write_checkpoint(tmp_path, learner, Progress(), {}, {})
    before = [parameter.detach().clone() for parameter in convolution.parameters()]
    _step(convolution, optimizer)
    wanted = [parameter.detach().clone() for parameter in convolution.parameters()]

    with torch.no_grad():
        for parameter, value in zip(convolution.parameters(), before, strict=True):
            parameter.copy_(value)
    restore(tmp_path, learner, read_state(tmp_path))
    kept = optimizer.state[convolution.weight]["exp_avg"]
    assert kept.stride() == convolution.weight.stride() != kept.contiguous().stride()
    _step(convolution, optimizer)  # refused by a fused optimiser on a GPU where the two lie in different orders
    assert all(torch.equal(one, other) for one, other in zip(convolution.parameters(), wanted, strict=True))


def _step(convolution, optimizer):
    torch.manual_seed(0)
    images = torch.randn(2, 3, 8, 8).to(convolution.weight.device, memory_format=torch.channels_last)
    optimizer.zero_grad()
    convolution(images).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize(("steps", "decay"), [(1, 0.0), (3, 0.0), (300, 0.99), (3000, 0.999), (10**6, 0.999)])
def test_the_average_of_a_short_run_forgets_the_initial_weights(steps, decay):
    assert decay_for(0.999, steps) == pytest.approx(decay)
    assert decay_for(0.999, steps) ** steps <= 0.0501


def test_the_average_of_a_short_run_is_close_to_the_last_weights():
    model = TinyModel()
    average = MovingAverage(model, decay_for(0.999, 60))
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(1.0)
    for _ in range(60):
        average.update(model)
    for name, value in model.trained_state().items():
        torch.testing.assert_close(average.state[name], value, rtol=0.2, atol=0.2)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_decay_depends_on_optimizer_steps(accumulate, tmp_path):
    data = make_data(tmp_path / "data", images=60)
    run = set_up(settings(data, tmp_path / "run", epochs=4, ema=0.999, accumulate=accumulate), TinyModel())
    assert run.learner.average.decay == pytest.approx(decay_for(0.999, 4 * len(run.plan(0))))
