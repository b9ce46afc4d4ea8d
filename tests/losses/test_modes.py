"""Precisions, layouts, devices, torch.func, double backward and torch.compile."""

import re

import pytest
import torch

from bcls.losses import LOSSES, from_name
from tests.losses.factories import batch

#: Every registered loss with its defaults, and variants that take other paths.
NAMES = [
    *((name, {}) for name in LOSSES),
    ("kendall-sw-hs", {"beta": 0.01}),
    ("kendall-sw-hs", {"beta": 0}),
]
every_loss = pytest.mark.parametrize(("name", "arguments"), NAMES, ids=lambda part: str(part))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(name, arguments, dtype):
    similarity, relevance = batch(24)
    similarity = similarity.to(dtype)
    loss = from_name(name, **arguments)
    leaf = similarity.clone().requires_grad_()
    value = loss(leaf, relevance)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    value.backward()
    assert leaf.grad.dtype == dtype
    assert torch.isfinite(leaf.grad).all()
    exact = loss(similarity.double(), relevance)
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-6)


@every_loss
@pytest.mark.parametrize("size", [20, 140])
def test_non_contiguous_input(name, arguments, size):
    similarity, relevance = batch(2 * size, dtype=torch.float64)
    similarity, relevance = similarity[::2, ::2], relevance[::2, ::2].fill_diagonal_(1)
    loss = from_name(name, **arguments)
    straight = loss(similarity.contiguous(), relevance.contiguous())
    torch.testing.assert_close(loss(similarity, relevance), straight)
    torch.testing.assert_close(loss(similarity.T.contiguous().T, relevance.T.contiguous().T), straight)


@every_loss
def test_double_backward(name, arguments):
    similarity, relevance = batch(8, dtype=torch.float64)
    leaf = similarity.clone().requires_grad_()
    value = from_name(name, **arguments)(leaf**2, relevance)
    (gradient,) = torch.autograd.grad(value, leaf, create_graph=True)
    (second,) = torch.autograd.grad((gradient * torch.linspace(0, 1, 64).view(8, 8)).sum(), leaf)
    step = 1e-6
    moved = []
    for sign in (1, -1):
        other = (similarity + sign * step * torch.linspace(0, 1, 64).view(8, 8)).requires_grad_()
        moved.append(torch.autograd.grad(from_name(name, **arguments)(other**2, relevance), other)[0])
    torch.testing.assert_close(second, (moved[0] - moved[1]) / (2 * step), rtol=1e-3, atol=1e-4)


@every_loss
def test_func_grad(name, arguments):
    similarity, relevance = batch(9, dtype=torch.float64)
    loss = from_name(name, **arguments)
    leaf = similarity.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf, relevance), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(similarity, relevance), expected)


def vmap_searches():
    """Whether this version of torch can read the bits of a stack and search in it; 2.11 cannot."""
    try:
        torch.func.vmap(torch.searchsorted)(torch.zeros(2, 3), torch.zeros(2, 1))
        torch.func.vmap(lambda row: row.view(torch.int32))(torch.zeros(2, 3))
    except RuntimeError:
        return False
    return True


#: Losses that must work with vmap; with searches only if torch can search in a stack.
VMAP = {"triplet", "triplet-hn", "triplet-sn", "kendall", "kendall-sw", "sam", "infonce", "sigmoid"}
VMAP_SEARCHES = {"kendall-sw-hs", "bcls", "ladder"}


@every_loss
def test_vmap_works_or_torch_explains_why_not(name, arguments):
    """Over a stack of batches; a loss whose work depends on the data may raise torch's own error."""
    similarity = torch.stack([batch(9, seed=k)[0] for k in range(3)])
    relevance = torch.stack([batch(9, seed=k)[1] for k in range(3)])
    loss = from_name(name, **arguments)
    must_work = name in VMAP or (name in VMAP_SEARCHES and vmap_searches() and arguments.get("beta") != 0.01)
    try:
        values = torch.func.vmap(loss)(similarity, relevance)
    except RuntimeError as error:
        if must_work or not re.search(r"vmap|Batching rule", str(error)):
            raise
        return
    expected = torch.stack([loss(s, r) for s, r in zip(similarity, relevance, strict=True)])
    torch.testing.assert_close(values, expected)


@every_loss
def test_compile(name, arguments):
    torch.compiler.reset()
    similarity, relevance = batch(16)
    loss = from_name(name, **arguments)
    # "aot_eager" traces forward and backward as "inductor" does, without needing a C++ compiler.
    compiled = torch.compile(loss, backend="aot_eager")
    for seed in range(2):
        similarity, relevance = batch(16, seed=seed)
        leaf, other = similarity.clone().requires_grad_(), similarity.clone().requires_grad_()
        value, expected = compiled(leaf, relevance), loss(other, relevance)
        torch.testing.assert_close(value, expected)
        value.backward()
        expected.backward()
        torch.testing.assert_close(leaf.grad, other.grad)


@every_loss
def test_autocast(name, arguments):
    similarity, relevance = batch(16)
    loss = from_name(name, **arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(similarity, relevance)
    torch.testing.assert_close(value, loss(similarity, relevance))


@every_loss
@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("size", [1, 40, 1100])
def test_cuda_equals_cpu(name, arguments, size):
    similarity, relevance = batch(size)
    loss = from_name(name, **arguments)
    leaf, other = similarity.clone().requires_grad_(), similarity.cuda().requires_grad_()
    value, far = loss(leaf, relevance), loss(other, relevance.cuda())
    torch.testing.assert_close(far.cpu(), value, rtol=1e-4, atol=1e-6)
    value.backward()
    far.backward()
    torch.testing.assert_close(other.grad.cpu(), leaf.grad, rtol=1e-4, atol=1e-6)


@every_loss
@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_every_loss_can_be_recorded(name, arguments):
    loss, (similarity, relevance) = from_name(name, **arguments), (one.cuda() for one in batch(40))
    leaf = similarity.clone().requires_grad_()
    expected = torch.autograd.grad(loss(leaf, relevance), leaf)[0]
    torch.cuda.synchronize()
    graph, beside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=beside):
        recorded = torch.autograd.grad(loss(leaf, relevance), leaf)[0]
    graph.replay()
    torch.testing.assert_close(recorded, expected)
