"""The state of a run: read from a damaged file, and put back the way it lay in memory."""

import json

import pytest
import torch

from bcls.data.vocabulary import SPECIALS, Vocabulary
from bcls.models import build
from bcls.training.checkpoint import Learner, Progress, read_state, restore, write_checkpoint

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
WHOLE = {"version": 1, "progress": {}, "settings": {}, "data": {}, "scaler": None}


def test_a_whole_state_is_read(tmp_path):
    (tmp_path / "training.json").write_text(json.dumps(WHOLE), encoding="utf-8")
    assert read_state(tmp_path) == WHOLE


@pytest.mark.parametrize("key", ["progress", "settings", "data"])
@pytest.mark.parametrize("value", [None, [], "missing"])
def test_a_missing_part_is_named_with_the_file(tmp_path, key, value):
    state = {name: one for name, one in WHOLE.items() if name != key}
    if value != "missing":
        state[key] = value
    (tmp_path / "training.json").write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"training\.json`: expected a mapping `{key}`"):
        read_state(tmp_path)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, GPU])])
def test_state_of_filters_lies_as_the_filters_do_and_the_next_step_is_the_same(tmp_path, device):
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
    pictures = torch.randn(2, 3, 8, 8).to(convolution.weight.device, memory_format=torch.channels_last)
    optimizer.zero_grad()
    convolution(pictures).square().mean().backward()
    optimizer.step()
