"""Definitions and settings that all backends share."""

import pytest
import torch

from bcls.losses import base, definitions, kendall, sam
from bcls.losses._torch import engine, mining
from bcls.losses.definitions import sliding_windows


@pytest.mark.parametrize("alpha", [0.0, 0.15, 0.2, 0.25, 1.3])
@pytest.mark.parametrize("beta", [0.01, 0.07, 0.1, 0.3, 0.7])
def test_as_many_windows_as_the_plain_loss(alpha, beta):
    settings = sliding_windows(alpha, beta)
    assert settings.count == definitions.window_count(alpha, beta)
    assert float(definitions.window_tensors(settings, torch.device("cpu"))[1].sum()) == pytest.approx(1)


def test_there_is_one_definition_for_all_backends():
    assert mining.EDGE is definitions.EDGE
    assert base.SAME is sam.SAME is engine.SAME is definitions.SAME
    assert kendall.window_count is mining.window_count is definitions.window_count
    assert kendall.check_stride is definitions.check_stride
    assert kendall.check_alpha is definitions.check_alpha


def test_numbers_stay_on_the_device():
    first = definitions.window_tensors(sliding_windows(), torch.device("cpu"))
    again = definitions.window_tensors(sliding_windows(), torch.device("cpu"))
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert first[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: sliding_windows(alpha=-0.1), "alpha"),
        (lambda: sliding_windows(alpha=float("nan")), "alpha"),
        (lambda: sliding_windows(beta=0), "beta"),
        (lambda: sliding_windows(beta=1.9), "beta"),
        (lambda: sliding_windows(beta=1e-6), "beta"),
        (lambda: sliding_windows(beta=1e-320), "beta"),
        (lambda: sliding_windows(3.0), "alpha"),
        (lambda: sliding_windows([0.2]), "alpha"),
        (lambda: sliding_windows(scale=float("nan")), "scale"),
    ],
)
def test_bad_settings_are_named(make, argument):
    with pytest.raises(ValueError, match=f"^`{argument}`"):
        make()
