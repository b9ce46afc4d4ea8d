"""Batches for the tests of the losses, one step of a loss, and comparisons that several test files share."""

import pytest
import torch
from hypothesis import strategies as st
from torch.nn import functional

from bcls.losses import KendallWindowLoss, definitions, from_name, without_kernels
from bcls.losses.backends import triton_runs_on
from bcls.losses.definitions import ROUNDING, SoftNegatives, sliding_windows
from bcls.losses.fused import matrix_loss

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
TRITON = triton_runs_on(torch.device(DEVICE))
#: Tests of the kernels, for a GPU or Triton's interpreter; `test_interpreter.py` runs them if there is no GPU.
KERNEL_TESTS = (
    "test_tile_kernels.py",
    "test_small_kernel.py",
    "test_value_kernel.py",
    "test_memory_guards.py",
    "test_roofline.py",
)
#: Only for `make test-all` if the kernels run in the interpreter, where a program takes milliseconds.
slow_if_interpreted = [] if GPU else [pytest.mark.slow]


def batch(size, seed=0, device="cpu", dtype=torch.float32, tied=False):
    """Scores and labels that fill all windows; with ties on request."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.randn(size, size, generator=generator, dtype=dtype) / 4
    relevance = (torch.randn(size, size, generator=generator) * 0.4 + 0.1).clamp(-1, 1)
    if tied:
        similarity, relevance = (similarity * 3).round() / 3, (relevance * 10).round() / 10
    return similarity.to(device), relevance.fill_diagonal_(1).to(device)


def ids_of(size, seed=0, device="cpu"):
    """Image ids, some of them repeated; also large and negative ones."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, max(1, 2 * size // 3), (size,), generator=generator) * 2**33 - 2**34).to(device)


def embeddings(size, seed=0, width=24, labels=12, device="cpu"):
    """Images, texts and label embeddings of captions, unit rows."""
    generator = torch.Generator().manual_seed(seed)
    images, noise = (torch.randn(size, width, generator=generator) for _ in range(2))
    captions = torch.randn(size, labels, generator=generator) + 0.4
    parts = images, images + noise, captions
    return tuple(functional.normalize(part, dim=1).to(device) for part in parts)


def plain(loss):
    """A loss without the fused kernels, on every device."""

    def call(*arguments, **options):
        with without_kernels():
            return loss(*arguments, **options)

    return call


def whole(relevance, image_ids=None, *, alpha=0.2, beta=0.1, average=False, weight=1.0):
    """BCLS, both terms from one call of :func:`bcls.losses.fused.matrix_loss`; a function of the scores."""

    def loss(similarity):
        scale = 1 / len(similarity)
        terms = matrix_loss(
            similarity,
            relevance,
            image_ids=image_ids,
            soft=SoftNegatives(average=average, scale=scale),
            windows=sliding_windows(alpha, beta, scale=weight * scale),
        )
        return terms.binary + terms.continuous

    return loss


def step(loss, *leaves):
    """Value and gradients of a scalar."""
    leaves = [leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_() for leaf in leaves]
    value = loss(*leaves)
    return value.detach(), *torch.autograd.grad(value, leaves, materialize_grads=True)


def assert_same(ours, theirs, rtol=1e-5, atol=1e-6):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=rtol, atol=atol)


def check_valid_windows_alone(size, beta=0.1, device="cpu"):
    """The mean over the non-empty windows of an anchor against the plain loss, with an anchor that has none."""
    similarity, relevance = batch(size, device=device)
    relevance[3] = 0.5  # no window has positives and negatives
    windows = sliding_windows(0.2, beta, valid_only=True)
    reference = plain(KendallWindowLoss(0.2, beta, window_norm="valid", reduction="sum"))
    assert_same(
        step(lambda scores: matrix_loss(scores, relevance, windows=windows).continuous, similarity),
        step(lambda scores: reference(scores, relevance), similarity),
    )


def check_plainly(similarity, relevance, *, bounded=True):
    """The value check of the Triton backend in plain torch: writes the same report."""
    words = definitions.report_on(similarity.device)
    cells = []
    for matrix in (similarity, relevance):
        odd = [] if matrix is None else (~matrix.isfinite()).flatten().nonzero().flatten().tolist()
        cells.append(4 * odd[0] + definitions.KINDS.index(str(matrix.flatten()[odd[0]].item())) if odd else -1)
    low, high = (0.0, 0.0) if relevance is None else (float(bound) for bound in relevance.float().aminmax())
    outside = bounded and relevance is not None and max(-low, high) > 1 + ROUNDING
    if max(cells) >= 0 or outside:
        words.copy_(torch.tensor([1.0, *cells, low, high, similarity.shape[1]], dtype=torch.float64))


# Labels on a grid fall on window edges and tie; the others do not.
GRID = st.integers(-10, 10).map(lambda k: k / 10)
FREE = st.floats(-1, 1, width=32)


@st.composite
def batches(draw, smallest=1, largest=7, labels=None, tied_scores=True):
    """(similarity, relevance, image_ids): float64 scores, labels in [-1, 1] with 1 on the diagonal."""
    size = draw(st.integers(smallest, largest))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.randn(size, size, generator=generator, dtype=torch.float64) / 2
    if tied_scores and draw(st.booleans()):
        similarity = (similarity * 4).round() / 4
    kind = labels or draw(st.sampled_from(["grid", "free", "equal", "high", "wide"]))
    if kind == "grid":
        relevance = torch.randint(-10, 11, (size, size), generator=generator) / 10
    elif kind == "equal":
        relevance = torch.full((size, size), draw(GRID))
    elif kind == "high":  # duplicate captions: many labels of 1
        relevance = torch.randint(8, 11, (size, size), generator=generator) / 10
    elif kind == "wide":
        relevance = torch.rand(size, size, generator=generator) * 2 - 1
    else:
        values = draw(st.lists(FREE, min_size=size * size, max_size=size * size))
        relevance = torch.tensor(values).reshape(size, size)
    relevance = relevance.float().double().fill_diagonal_(1)
    image_ids = draw(st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    return similarity, relevance, None if image_ids is None else torch.tensor(image_ids)


def value_and_gradient(loss, similarity, *inputs, **named):
    """Loss and its gradient in the similarities."""
    leaf = similarity.detach().clone().requires_grad_()
    value = loss(leaf, *inputs, **named)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def untied(similarity):
    """The same order of scores without ties, so that gradients are unique."""
    noise = torch.linspace(0, 1e-3, similarity.numel(), dtype=similarity.dtype).view(similarity.shape)
    return similarity + noise * noise


def assert_equals_reference(name, arguments, reference, batch):
    """Value (both reductions) and gradient of a loss equal those of its slow transcription.

    Args:
        name: Name of the loss.
        arguments: Arguments of the loss and of the reference.
        reference: Called as ``reference(similarity, relevance, image_ids, **arguments)``; returns the sum.
        batch: From :func:`batches`.
    """
    similarity, relevance, image_ids = batch
    expected = reference(similarity, relevance, image_ids, **arguments)
    for reduction, divisor in (("sum", 1), ("mean", len(similarity))):
        value = from_name(name, reduction=reduction, **arguments)(similarity, relevance, image_ids=image_ids)
        torch.testing.assert_close(value, expected / divisor, rtol=1e-9, atol=1e-9)
    similarity = untied(similarity)  # any of several tied extrema may be chosen
    _, expected = value_and_gradient(reference, similarity, relevance, image_ids, **arguments)
    loss = from_name(name, reduction="sum", **arguments)
    _, gradient = value_and_gradient(loss, similarity, relevance, image_ids=image_ids)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9)
