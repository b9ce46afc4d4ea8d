import pytest
import torch

from bcls.experiments.bench import difference, medians, megabytes, milliseconds, step

CPU = torch.device("cpu")


def test_medians_take_turns_in_changing_order_and_leave_out_the_first_step_of_each():
    calls = []
    rivals = {name: lambda name=name: calls.append(name) for name in "ab"}
    took = medians(rivals, CPU, 8)
    begun, turns = calls[:4], ["".join(calls[start : start + 4]) for start in range(4, len(calls), 4)]
    assert begun == list("aabb")
    assert len(turns) == 16
    assert all({one, other} == {"aaaa", "bbbb"} for one, other in zip(turns[::2], turns[1::2], strict=True))
    assert {"aaaa", "bbbb"} <= set(turns[::2])  # neither is always the first
    assert took.keys() == rivals.keys()
    assert all(value > 0 for value in took.values())


def test_milliseconds_are_milliseconds():
    import time

    assert 20 <= milliseconds(lambda: time.sleep(0.02), CPU) < 2000


@pytest.mark.parametrize(("run", "kept", "expected"), [
    (lambda: torch.empty(1_000_000), 0, 4),
    (lambda: torch.empty(1_000_000), 4_000_000, 0),
    (lambda: (torch.empty(1_000_000).sum(), torch.empty(500_000)), 0, 4),
])  # fmt: skip
def test_megabytes_are_the_peak_without_what_is_kept(run, kept, expected):
    assert megabytes(run, CPU, kept) == pytest.approx(expected, abs=0.01)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu():
    device = torch.device("cuda", 0)
    assert megabytes(lambda: torch.empty(1_000_000, device=device), device) == pytest.approx(4, rel=0.1)
    assert (
        milliseconds(lambda: torch.randn(4096, 4096, device=device).mm(torch.randn(4096, 4096, device=device)), device)
        > 0
    )


def test_difference_is_the_largest_of_value_and_gradients():
    leaf = torch.ones(3, requires_grad=True)
    ours = step(lambda a: (a**2).sum(), (leaf,))
    assert difference(ours, ours) == 0
    assert difference(ours, (ours[0] * 1.25, ours[1])) == pytest.approx(0.2)
    assert difference(ours, (ours[0], ours[1] * 2)) == pytest.approx(0.5)
