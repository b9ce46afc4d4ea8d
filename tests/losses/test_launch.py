"""Launches of kernels, with a stand-in for Triton."""

import pytest
import torch

from bcls.losses._triton import launch as launching


class Kernel:
    """Records its calls; an ordinary call returns ``compiled``."""

    __name__ = "kernel"

    def __init__(self, compiled=None):
        self.calls, self.compiled = [], compiled

    def __getitem__(self, grid):
        def call(*arguments, **options):
            self.calls.append((grid, arguments, options))
            return self.compiled

        return call


class Strict(Kernel):
    def __getitem__(self, grid):
        def call(*arguments):
            raise TypeError(f"function takes exactly 1 argument ({len(arguments)} given)")

        return call


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.setattr(launching, "_COMPILED", {})
    monkeypatch.setattr(launching, "_REFUSED", set())


def start(kernel, tensors=(), numbers=(), grid=(7,), device="cpu", **options):
    launching.launch(kernel, torch.device(device), grid, tensors, numbers, **options)


def test_the_second_launch_with_the_same_numbers_is_direct():
    compiled = Kernel()
    kernel = Kernel(compiled)
    for numbers in ((1, 2.0), (1, 2.0), (3, 2.0)):
        start(kernel, (None,), numbers, num_warps=8)
    assert kernel.calls == [((7,), (None, 1, 2.0), {"num_warps": 8}), ((7,), (None, 3, 2.0), {"num_warps": 8})]
    assert compiled.calls == [((7, 1, 1), (None, 1, 2.0), {})]


def test_an_older_triton_and_the_interpreter_are_called_as_usual():
    for compiled in (Strict(), None):
        kernel = Kernel(compiled)
        for _ in range(3):
            start(kernel)
        assert len(kernel.calls) == 3
        assert not launching._COMPILED


def test_compiled_kernels_are_forgotten_when_there_are_many(monkeypatch):
    monkeypatch.setattr(launching, "_MOST", 2)
    kernel = Kernel(Kernel())
    for number in range(5):
        start(kernel, numbers=(number,))
    assert len(launching._COMPILED) == 1


def test_code_depends_on_type_and_alignment_of_a_tensor_and_on_the_device():
    kernel, rows = Kernel(Kernel()), torch.zeros(8)
    for tensor, launches in ((rows, 1), (rows[4:], 1), (rows[1:], 2), (rows.half(), 3), (None, 4)):
        start(kernel, (tensor,))
        assert len(kernel.calls) == launches
    start(kernel, (rows,), device="cuda:1")
    assert len(kernel.calls) == 5


def test_grids_of_two_dimensions():
    compiled = Kernel()
    for _ in range(2):
        start(Kernel(compiled), grid=(7, 3))
    ((grid, _, _),) = compiled.calls
    assert grid[:3] == (7, 3, 1)
