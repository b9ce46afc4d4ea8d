"""The learning rate over a run."""

import pytest

from bcls.training.config import TrainConfig
from bcls.training.optimization import rate_at


def rates(config, steps=10):
    return [rate_at(epoch, step, steps, config) for epoch in range(config.epochs) for step in range(steps)]


def test_steps_drop_after_their_epochs():
    found = rates(TrainConfig(epochs=4, drops=[1, 3], drop=0.1))
    assert found == pytest.approx([1.0] * 10 + [0.1] * 20 + [0.01] * 10)


def test_warm_up_rises_to_one_and_never_starts_at_nothing():
    found = rates(TrainConfig(epochs=3, schedule="constant", warmup=1.5))
    assert found[0] == pytest.approx(1 / 15)
    assert found[:15] == sorted(found[:15])
    assert found[14:] == pytest.approx([1.0] * 16)


def test_the_cosine_ends_near_nothing():
    found = rates(TrainConfig(epochs=5, schedule="cosine", warmup=1))
    assert found[10] == 1.0
    assert found[10:] == sorted(found[10:], reverse=True)
    assert 0 < found[-1] < 0.01
    assert found[30] == pytest.approx(0.5)
