import pytest
import torch

from bcls.kernels import SoftNegatives, rungs, sliding_windows
from bcls.kernels import settings as kernel_settings
from bcls.losses import _batch, _windows


@pytest.mark.parametrize("alpha", [0.0, 0.15, 0.2, 0.25, 1.3])
@pytest.mark.parametrize("beta", [0.01, 0.07, 0.1, 0.3, 0.7])
def test_as_many_windows_as_the_plain_loss(alpha, beta):
    windows = sliding_windows(alpha, beta)
    assert windows.count == _windows.window_count(alpha, beta)
    assert sum(windows.weights) == pytest.approx(1)


def test_tolerances_are_those_of_the_plain_losses():
    assert kernel_settings.EDGE == _windows.EDGE
    assert kernel_settings.SAME == _batch.SAME


def test_numbers_stay_on_the_device():
    windows = sliding_windows()
    first = kernel_settings.numbers_on(windows, torch.device("cpu"))
    again = kernel_settings.numbers_on(sliding_windows(), torch.device("cpu"))
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert first[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: sliding_windows(alpha=-0.1), "alpha"),
        (lambda: sliding_windows(alpha=float("nan")), "alpha"),
        (lambda: sliding_windows(beta=0), "beta"),
        (lambda: sliding_windows(beta=1.9), "beta"),
        (lambda: rungs((), (), ()), "thresholds"),
        (lambda: rungs((0.4, 0.2), (0, 0), (1, 1)), "thresholds"),
        (lambda: rungs((0.4,), (0, 0), (1,)), "margins"),
        (lambda: rungs((0.4,), (0,), ()), "weights"),
        (lambda: SoftNegatives(gamma=0), "gamma"),
        (lambda: SoftNegatives(margin=-1), "margin"),
        (lambda: SoftNegatives(scale=float("inf")), "scale"),
    ],
)
def test_bad_settings_are_named(make, argument):
    with pytest.raises(ValueError, match=f"^`{argument}`"):
        make()
