"""The moving average of the weights."""

import pytest
import torch

from bcls.training.checkpoint import MovingAverage, decay_for
from bcls.training.setup import set_up
from tests.training.made import TinyModel, make_data, settings


@pytest.mark.parametrize(("steps", "decay"), [(1, 0.0), (3, 0.0), (300, 0.99), (3000, 0.999), (10**6, 0.999)])
def test_a_short_run_forgets_its_first_weights(steps, decay):
    assert decay_for(0.999, steps) == pytest.approx(decay)
    assert decay_for(0.999, steps) ** steps <= 0.0501


def test_an_average_of_a_short_run_is_near_the_last_weights():
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
def test_steps_of_the_optimiser_are_counted(accumulate, tmp_path):
    data = make_data(tmp_path / "data", images=60)
    run = set_up(settings(data, tmp_path / "run", epochs=4, ema=0.999, accumulate=accumulate), TinyModel())
    assert run.learner.average.decay == pytest.approx(decay_for(0.999, 4 * len(run.plan(0))))
