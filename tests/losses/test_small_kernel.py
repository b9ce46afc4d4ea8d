"""The kernel for small matrices against the plain losses, on a GPU or in Triton's interpreter.

The matrices are very small, since the interpreter takes a millisecond for each operation of each program.
"""

import pytest
import torch

from bcls.losses import BCLSLoss, TripletSoftLoss
from bcls.losses.definitions import SoftNegatives, sliding_windows
from bcls.losses.fused import matrix_loss
from tests.losses.factories import (
    DEVICE,
    GPU,
    assert_same,
    batch,
    check_valid_windows_alone,
    ids_of,
    plain,
    slow_if_interpreted,
    step,
    whole,
)


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    """Other kernels must not be used here."""
    from bcls.losses import fused

    monkeypatch.delattr(fused, "_MatrixLoss")


@pytest.mark.parametrize("size", [1, 2, 16, 17, 128, 300, 1000, 2048, 3072] if GPU else [1, 2, 17])
def test_bcls(size):
    similarity, relevance = batch(size, device=DEVICE)
    ids = ids_of(size, device=DEVICE)
    ours = step(whole(relevance, ids, alpha=0.25, beta=0.2, average=True), similarity)
    reference = plain(BCLSLoss(0.25, 0.2, lse="mean"))
    assert_same(ours, step(lambda scores: reference(scores, relevance, image_ids=ids), similarity))


def test_rounds_do_not_change_the_result(monkeypatch):
    """As in larger matrices: keys raised in two rounds."""
    from bcls.losses._triton import small

    similarity, relevance = batch(11, device=DEVICE)
    expected = step(lambda scores: plain(BCLSLoss(0.2, 0.2))(scores, relevance), similarity)
    monkeypatch.setattr(small, "_AT_ONCE", 4)
    assert_same(step(whole(relevance, beta=0.2), similarity), expected)


@pytest.mark.skipif(not GPU, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("size", [128, 1024])
def test_many_windows(size):
    similarity, relevance = batch(size, device=DEVICE)
    reference = plain(BCLSLoss(0.2, 0.01))
    assert_same(
        step(whole(relevance, beta=0.01), similarity), step(lambda scores: reference(scores, relevance), similarity)
    )


@pytest.mark.parametrize(
    ("size", "beta", "expected"), [(3072, 0.1, True), (3072, 0.01, True), (3073, 0.1, False), (64, 0.005, False)]
)
def test_which_matrices_are_small(size, beta, expected):
    from bcls.losses._triton.small import is_small

    assert is_small(size, sliding_windows(0.2, beta)) == expected


def test_valid_windows_alone():
    check_valid_windows_alone(8, 0.3, DEVICE)


def test_soft_negatives_without_labels_and_again():
    """The second launch finds the count of arrivals as the first one did."""
    similarity, _ = batch(7, device=DEVICE)
    expected = step(plain(TripletSoftLoss(reduction="sum")), similarity)
    for _ in range(2):
        assert_same(step(lambda scores: matrix_loss(scores, soft=SoftNegatives()).binary, similarity), expected)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=slow_if_interpreted), torch.bfloat16])
def test_half_precision(dtype):
    similarity, relevance = batch(7, device=DEVICE)
    rounded = similarity.to(dtype)
    value, gradient = step(whole(relevance, beta=0.3), rounded)
    assert gradient.dtype == dtype
    exact, slope = step(whole(relevance, beta=0.3), rounded.float())
    assert_same((value, gradient), (exact, slope.to(dtype)), rtol=1e-3)


def test_any_strides():
    similarity, relevance = batch(12, device=DEVICE)
    scores, labels = similarity[::2, ::2], relevance[::2, ::2].fill_diagonal_(1)
    expected = step(whole(labels.contiguous(), beta=0.3), scores.contiguous())
    assert_same(step(whole(labels.T.contiguous().T, beta=0.3), scores.T.contiguous().T), expected)
    assert_same((whole(labels, beta=0.3)(scores),), expected[:1])


def test_halves_with_gradients_of_their_own():
    """An unused term has no part in the gradient, and two weighted terms are not confused."""
    similarity, relevance = batch(7, device=DEVICE)
    both = {"soft": SoftNegatives(), "windows": sliding_windows(0.2, 0.3)}

    def asked(first, second, **halves):
        def loss(scores):
            terms = matrix_loss(scores, relevance, **halves)
            parts = ((first, terms.binary), (second, terms.continuous))
            return sum(weight * term for weight, term in parts if weight)

        return step(loss, similarity)

    binary, continuous = asked(1, 0, soft=both["soft"]), asked(0, 1, windows=both["windows"])
    for first, second in ((1, 0), (0, 1), (1, 1), (2, 0.5)):
        expected = [first * one + second * other for one, other in zip(binary, continuous, strict=True)]
        assert_same(asked(first, second, **both), expected)
        assert_same(asked(first, 1, soft=both["soft"]), [first * part for part in binary])


def test_backward_twice_and_upstream():
    similarity, relevance = batch(5, device=DEVICE)
    leaf = similarity.requires_grad_()
    value = whole(relevance, beta=0.3)(leaf)
    (once,) = torch.autograd.grad(value, leaf, retain_graph=True)
    (again,) = torch.autograd.grad(value, leaf, -3 * torch.ones_like(value))
    assert_same([again], [-3 * once])


def test_whole_numbers_are_passed_on_as_floats(monkeypatch):
    """Compiled code is found again by a key in which 1 and 1.0 are equal."""
    from bcls.losses._triton import small

    passed = []

    def note(kernel, device, grid, tensors, numbers, **options):
        passed.append([type(number) for number in numbers])

    monkeypatch.setattr(small, "launch", note)
    similarity, relevance = batch(5, device=DEVICE)
    for margin, scale in ((0.5, 2.0), (1, 2)):
        soft, windows = SoftNegatives(margin, 50, scale=scale), sliding_windows(scale=scale)
        matrix_loss(similarity, relevance, soft=soft, windows=windows)
    assert passed[0] == passed[1]


def test_memory_of_the_programs_does_not_depend_on_the_default_dtype(monkeypatch):
    """It also holds numbers of 64 bits: with a default of 16 bits it was too small, and they were written behind it."""
    from bcls.losses._triton import small

    given = []
    monkeypatch.setattr(small, "launch", lambda kernel, device, grid, tensors, *_, **options: given.append(tensors[4]))
    similarity, relevance = batch(5, device=DEVICE)
    before = torch.get_default_dtype()
    try:
        for default in (torch.float32, torch.float16, torch.float64):
            torch.set_default_dtype(default)
            matrix_loss(similarity, relevance, soft=SoftNegatives(), windows=sliding_windows(0.2, 0.3))
    finally:
        torch.set_default_dtype(before)
    assert [(one.dtype, one.shape) for one in given] == [(torch.float32, given[0].shape)] * 3


def test_without_a_gradient_nothing_is_kept():
    similarity, relevance = batch(5, device=DEVICE)
    expected = whole(relevance, beta=0.3)(similarity)
    with torch.no_grad():
        value = whole(relevance, beta=0.3)(similarity.requires_grad_())
    assert not value.requires_grad
    assert_same([value], [expected])


def test_a_half_that_is_left_out_is_zero():
    similarity, relevance = batch(5, device=DEVICE)
    assert matrix_loss(similarity, relevance, soft=SoftNegatives()).continuous == 0
    assert matrix_loss(similarity, relevance, windows=sliding_windows(0.2, 0.3)).binary == 0


def test_the_value_may_be_changed_in_place():
    similarity, relevance = batch(5, device=DEVICE)

    def halved(scores):
        value = matrix_loss(scores, relevance, soft=SoftNegatives()).binary
        value /= 2
        return value

    soft = SoftNegatives(scale=0.5)
    assert_same(
        step(halved, similarity), step(lambda scores: matrix_loss(scores, relevance, soft=soft).binary, similarity)
    )


def test_second_derivative_is_refused():
    similarity, relevance = batch(5, device=DEVICE)
    leaf = similarity.requires_grad_()
    (gradient,) = torch.autograd.grad(whole(relevance, beta=0.3)(leaf**2), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


@pytest.mark.skipif(not GPU, reason="needs an NVIDIA GPU")
def test_captured_graph_and_streams():
    similarity, relevance = batch(64, device=DEVICE)
    expected = step(whole(relevance), similarity)
    leaf, stream = similarity.clone().requires_grad_(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            torch.autograd.grad(whole(relevance)(leaf), leaf)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = whole(relevance)(leaf)
        (gradient,) = torch.autograd.grad(value, leaf)
    for _ in range(2):
        graph.replay()
        assert_same((value.detach(), gradient), expected)
