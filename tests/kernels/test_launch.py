"""The logic of launches, with a stand-in for Triton: what compiled kernels do is for a GPU to say."""

import pytest
import torch

from bcls.kernels import _launch


class Kernel:
    """Notes how it is called; ``compiled`` is what an ordinary call gives."""

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
    monkeypatch.setattr(_launch, "_COMPILED", {})
    monkeypatch.setattr(_launch, "_REFUSED", set())


def test_the_second_launch_with_a_key_is_direct():
    compiled = Kernel()
    kernel = Kernel(compiled)
    for key, arguments in (("a", (1, 2)), ("a", (3, 4)), ("b", (5, 6))):
        _launch.launch(kernel, 7, arguments, key, warps=4)
    assert kernel.calls == [((7,), (1, 2), {"num_warps": 4}), ((7,), (5, 6), {"num_warps": 4})]
    assert compiled.calls == [((7, 1, 1), (3, 4), {})]


def test_an_older_triton_and_the_interpreter_are_called_as_usual():
    for compiled in (Strict(), None):
        kernel = Kernel(compiled)
        for number in range(3):
            _launch.launch(kernel, 7, (number,), "key", warps=1)
        assert [arguments for _, arguments, _ in kernel.calls] == [(0,), (1,), (2,)]
        assert not _launch._COMPILED


def test_keys_are_forgotten_when_there_are_many(monkeypatch):
    monkeypatch.setattr(_launch, "_MOST", 2)
    kernel = Kernel(Kernel())
    for key in range(5):
        _launch.launch(kernel, 1, (), key, warps=1)
    assert len(_launch._COMPILED) == 1


def test_what_a_tensor_looks_like():
    rows = torch.zeros(8)
    assert _launch.looks(rows) == _launch.looks(rows[4:])
    assert _launch.looks(rows) != _launch.looks(rows[1:])
    assert _launch.looks(rows) != _launch.looks(rows.half())
    assert _launch.looks(None) is None
