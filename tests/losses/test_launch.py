"""Launches of kernels, with a stand-in for Triton."""

import pytest
import torch

from bcls.losses._triton import launch as launching


class Kernel:
    """Records its calls; an ordinary call returns ``compiled``."""

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


def test_the_second_launch_with_a_key_is_direct():
    compiled = Kernel()
    kernel = Kernel(compiled)
    for key, arguments in (("a", (1, 2)), ("a", (3, 4)), ("b", (5, 6))):
        launching.launch(kernel, (7,), arguments, key, warps=4)
    assert kernel.calls == [((7,), (1, 2), {"num_warps": 4}), ((7,), (5, 6), {"num_warps": 4})]
    assert compiled.calls == [((7, 1, 1), (3, 4), {})]


def test_an_older_triton_and_the_interpreter_are_called_as_usual():
    for compiled in (Strict(), None):
        kernel = Kernel(compiled)
        for number in range(3):
            launching.launch(kernel, (7,), (number,), "key", warps=1)
        assert [arguments for _, arguments, _ in kernel.calls] == [(0,), (1,), (2,)]
        assert not launching._COMPILED


def test_keys_are_forgotten_when_there_are_many(monkeypatch):
    monkeypatch.setattr(launching, "_MOST", 2)
    kernel = Kernel(Kernel())
    for key in range(5):
        launching.launch(kernel, (1,), (), key, warps=1)
    assert len(launching._COMPILED) == 1


def test_the_signature_of_a_tensor_is_type_and_alignment():
    rows = torch.zeros(8)
    assert launching.signature(rows) == launching.signature(rows[4:])
    assert launching.signature(rows) != launching.signature(rows[1:])
    assert launching.signature(rows) != launching.signature(rows.half())
    assert launching.signature(None) is None


def test_grids_of_two_dimensions():
    compiled = Kernel()
    for _ in range(2):
        launching.launch(Kernel(compiled), (7, 3), (), "key")
    ((grid, _, _),) = compiled.calls
    assert grid[:3] == (7, 3, 1)
