"""The self-test passes on sound code and notices code that is not."""

import functools

import pytest
import torch

from bcls._core.extras import MissingExtraError
from bcls.cli.doctor import attempt, self_test, try_kernels, try_loss, try_search, try_training
from bcls.losses import BCLSLoss


def test_sound_code_passes():
    section = self_test()
    assert [line.name for line in section.lines][:3] == ["loss on cpu", "training on cpu", "index and search"]
    assert [line.problem for line in section.lines if line.problem] == []


@pytest.mark.parametrize("wrong", [{"margin": 0.3}, {"weight": 0.5}, {"alpha": 0.6}, {"reduction": "mean"}])
def test_a_wrong_loss_is_noticed(wrong, monkeypatch):
    monkeypatch.setattr("bcls.losses.BCLSLoss", lambda **given: BCLSLoss(**(given | wrong)))
    with pytest.raises(ValueError, match="expected the right numbers"):
        try_loss("cpu")


def test_a_wrong_gradient_is_noticed(monkeypatch):
    right = torch.autograd.grad
    monkeypatch.setattr("torch.autograd.grad", lambda *given: tuple(-one for one in right(*given)))
    with pytest.raises(ValueError, match="its gradient"):
        try_loss("cpu")


def test_training_that_does_not_learn_is_noticed(monkeypatch):
    monkeypatch.setattr("torch.optim.Adam", functools.partial(torch.optim.Adam, maximize=True))
    with pytest.raises(ValueError, match="a loss below"):
        try_training("cpu")


def test_torch_generator_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    try_training("cpu")
    assert torch.equal(torch.rand(2), expected)


def test_an_index_that_finds_the_wrong_picture_is_noticed(monkeypatch):
    pytest.importorskip("faiss", reason='needs pip install "bcls[index]"')
    from bcls.data import synthetic

    monkeypatch.setattr(synthetic, "make_scenes", lambda count, seed: _same_scenes(count))
    with pytest.raises(ValueError, match="as the first answer to itself"):
        try_search()


def _same_scenes(count):
    from bcls.data.synthetic.dataset import make_scenes

    made = make_scenes(1, seed=0)
    return type("Made", (), {"scenes": [made.scenes[0]] * count})


def test_what_is_raised_becomes_a_problem():
    def breaks():
        raise RuntimeError("no\n kernel")

    line = attempt("kernels", breaks)
    assert (line.value, line.problem) == ("failed", "RuntimeError: no kernel")


def test_a_missing_extra_is_no_problem():
    def needs():
        raise MissingExtraError('an index of photos needs faiss: pip install "bcls[index]"')

    line = attempt("index and search", needs)
    assert line.value.startswith("not tried: an index of photos needs faiss")
    assert not line.problem


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_the_gpu():
    assert try_kernels()
    assert try_loss("cuda")
    assert try_training("cuda")
