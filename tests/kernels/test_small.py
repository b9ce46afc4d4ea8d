"""The kernels for small matrices against the plain losses, on a GPU or in Triton's interpreter, as ``test_triton.py``.

Matrices are very small here, since the interpreter takes a millisecond for each operation of each program.
"""

import pytest
import torch

from bcls.kernels import SoftNegatives, engines, matrix_loss, rungs, sliding_windows
from bcls.losses import BCLSLoss, KendallWindowLoss, LadderLoss, TripletSoftLoss
from tests.kernels.made import assert_same, batch, ids_of, plain, step
from tests.kernels.test_matrix import whole

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
pytestmark = pytest.mark.skipif(
    not engines.runs_triton(torch.device(DEVICE)), reason="neither a GPU nor the interpreter"
)


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    """Nothing here may be served by other kernels."""
    from bcls.kernels import matrix

    monkeypatch.delattr(matrix, "_MatrixLoss")


@pytest.mark.parametrize("size", [1, 2, 16, 17, 128, 300, 1000, 2048] if GPU else [1, 2, 17])
def test_bcls(size):
    similarity, relevance = batch(size, device=DEVICE)
    ids = ids_of(size, device=DEVICE)
    ours = step(whole(relevance, ids, alpha=0.25, beta=0.2, average=True), similarity)
    reference = plain(BCLSLoss(0.25, 0.2, lse="mean"))
    assert_same(ours, step(lambda scores: reference(scores, relevance, image_ids=ids), similarity))


def test_blocks_and_rounds_do_not_change_the_result(monkeypatch):
    """As in larger matrices: keys raised in two rounds, several rows a program, pairs looked through in pieces."""
    from bcls.kernels import _small

    similarity, relevance = batch(11, device=DEVICE)
    expected = step(lambda scores: plain(BCLSLoss(0.2, 0.2))(scores, relevance), similarity)
    for name, value in (("_AT_ONCE", 4), ("_PROGRAMS", 4), ("_PAIRS", 16)):
        monkeypatch.setattr(_small, name, value)
    assert_same(step(whole(relevance, beta=0.2), similarity), expected)


@pytest.mark.skipif(not GPU, reason="too much for the interpreter")
@pytest.mark.parametrize("size", [128, 1024])
def test_many_windows(size):
    similarity, relevance = batch(size, device=DEVICE)
    reference = plain(BCLSLoss(0.2, 0.01))
    assert_same(
        step(whole(relevance, beta=0.01), similarity), step(lambda scores: reference(scores, relevance), similarity)
    )


@pytest.mark.parametrize(("size", "beta", "small"), [(2048, 0.1, True), (2049, 0.1, False), (64, 0.005, False)])
def test_what_is_small(size, beta, small):
    from bcls.kernels._small import is_small

    assert is_small(size, sliding_windows(0.2, beta)) == small
    assert is_small(1024, sliding_windows(0.2, 0.01))
    assert not is_small(2048, sliding_windows(0.2, 0.01))


@pytest.mark.parametrize("with_ids", [False, True])
def test_rungs(with_ids):
    similarity, relevance = batch(9, device=DEVICE)
    relevance[0] = 0.25
    ids = ids_of(9, device=DEVICE) if with_ids else None
    windows = rungs((0.1, 0.25, 0.5), (0.02, 0.0, 0.3), (0.25, 1.0, 0.5), scale=1 / 9)
    reference = plain(LadderLoss((0.1, 0.25, 0.5), (0.2, 0.02, 0.0, 0.3), (0.25, 1.0, 0.5)).terms)
    assert_same(
        step(lambda scores: matrix_loss(scores, relevance, image_ids=ids, windows=windows).continuous, similarity),
        step(lambda scores: reference(scores, relevance, image_ids=ids)["continuous"], similarity),
    )


def test_valid_windows_alone():
    similarity, relevance = batch(8, device=DEVICE)
    relevance[3] = 0.5  # no window has positives and negatives
    reference = plain(KendallWindowLoss(0.2, 0.3, window_norm="valid", reduction="sum"))
    windows = sliding_windows(0.2, 0.3, valid_only=True)
    assert_same(
        step(lambda scores: matrix_loss(scores, relevance, windows=windows).continuous, similarity),
        step(lambda scores: reference(scores, relevance), similarity),
    )


def test_soft_negatives_without_labels_and_again():
    """The second launch finds the count of arrivals as the first one did."""
    similarity, _ = batch(7, device=DEVICE)
    expected = step(plain(TripletSoftLoss(reduction="sum")), similarity)
    for _ in range(2):
        assert_same(step(lambda scores: matrix_loss(scores, soft=SoftNegatives()).binary, similarity), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
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


def test_one_half_of_both():
    """Nobody asks about the other one, which then has no part in the gradient."""
    similarity, relevance = batch(7, device=DEVICE)
    both = {"soft": SoftNegatives(), "windows": sliding_windows(0.2, 0.3)}
    for name, alone in (("binary", {"soft": both["soft"]}), ("continuous", {"windows": both["windows"]})):
        assert_same(
            step(lambda scores: getattr(matrix_loss(scores, relevance, **both), name), similarity),  # noqa: B023
            step(lambda scores: getattr(matrix_loss(scores, relevance, **alone), name), similarity),  # noqa: B023
        )


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


def test_nan_is_not_hidden():
    similarity, relevance = batch(2, device=DEVICE)
    similarity[0, 1] = torch.nan
    assert matrix_loss(similarity, relevance, soft=SoftNegatives()).binary.isnan()


def test_second_derivative_is_refused():
    similarity, relevance = batch(5, device=DEVICE)
    leaf = similarity.requires_grad_()
    (gradient,) = torch.autograd.grad(whole(relevance, beta=0.3)(leaf**2), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


@pytest.mark.skipif(not GPU, reason="graphs are a GPU's")
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
