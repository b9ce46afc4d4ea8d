"""The tile passes in plain torch against the plain losses; the Triton backend has its own files."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.losses import BCLSLoss, KendallWindowLoss, StreamingBCLSLoss, TripletSoftLoss
from bcls.losses._torch import engine
from bcls.losses.backends import triton_runs_on
from bcls.losses.definitions import SoftNegatives, sliding_windows
from bcls.losses.fused import matrix_loss
from tests.losses.factories import (
    assert_same,
    batch,
    check_valid_windows_alone,
    embeddings,
    ids_of,
    plain,
    step,
    whole,
)

SIZES = [1, 2, 3, 40]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.1), (0.25, 0.1), (0.2, 0.01), (0.0, 0.3), (0.13, 0.07)])
@pytest.mark.parametrize("with_ids", [False, True])
def test_bcls(size, alpha, beta, with_ids):
    similarity, relevance = batch(size)
    ids = ids_of(size) if with_ids else None
    ours = step(whole(relevance, ids, alpha=alpha, beta=beta, average=True, weight=2.0), similarity)
    reference = plain(BCLSLoss(alpha, beta, weight=2.0, lse="mean"))
    assert_same(ours, step(lambda scores: reference(scores, relevance, image_ids=ids), similarity))


def test_valid_windows_alone():
    check_valid_windows_alone(30)


@pytest.mark.parametrize("size", SIZES)
def test_soft_negatives_without_labels(size):
    similarity, _ = batch(size)
    reference = plain(TripletSoftLoss(reduction="sum"))
    assert_same(
        step(lambda scores: matrix_loss(scores, soft=SoftNegatives()).binary, similarity),
        step(reference, similarity),
    )


@pytest.mark.parametrize("cells", [1, 100, 1000])
def test_tiles_do_not_change_the_result(monkeypatch, cells):
    images, texts, captions = embeddings(23)
    loss = StreamingBCLSLoss(lse="mean")

    def value(a, b):
        return loss(a, b, captions, image_ids=ids_of(23))

    expected = step(value, images, texts)
    monkeypatch.setitem(engine._CELLS, "cpu", cells)
    assert_same(step(value, images, texts), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    similarity, relevance = batch(40)
    rounded = similarity.to(dtype)
    value, gradient = step(whole(relevance), rounded)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    exact, slope = step(whole(relevance), rounded.float())
    assert_same((value, gradient), (exact, slope.to(dtype)))


def test_any_strides():
    similarity, relevance = batch(50)
    views = similarity[::2, ::2], relevance[::2, ::2].fill_diagonal_(1)
    expected = step(whole(views[1].contiguous()), views[0].contiguous())
    assert_same(step(whole(views[1].T.contiguous().T), views[0].T.contiguous().T), expected)
    assert_same((whole(views[1])(views[0]),), expected[:1])


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_ties_have_one_value_and_flat_hinges_no_gradient(zero):
    _, relevance = batch(12)
    scores = torch.zeros(12, 12)
    scores[::2] = zero
    value, gradient = step(lambda s: matrix_loss(s, relevance, windows=sliding_windows()).continuous, scores)
    assert value == 0
    assert not gradient.any()
    scores = torch.randint(0, 3, (12, 12), generator=torch.Generator().manual_seed(0)).float()
    ours = step(whole(relevance), scores)
    theirs = step(lambda s: plain(BCLSLoss())(s, relevance), scores)
    assert_same(ours[:1], theirs[:1])
    assert float(ours[1].sum()) == pytest.approx(float(theirs[1].sum()), abs=1e-5)


def test_a_large_offset_costs_no_digits():
    similarity, relevance = batch(40)
    shifted = similarity + 10_000
    value = matrix_loss(shifted, relevance, windows=sliding_windows()).continuous
    exact = plain(KendallWindowLoss(reduction="sum"))(shifted.double(), relevance)
    torch.testing.assert_close(value.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.skipif(triton_runs_on(torch.device("cpu")), reason="the interpreter reports it to the next call")
@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        ("similarity", torch.nan, "`similarity`: expected finite numbers, got nan at row 2, column 5"),
        ("relevance", torch.nan, "`relevance`: expected finite numbers, got nan at row 2, column 5"),
        ("relevance", 50.0, r"`relevance`: expected labels in \[-1, 1\], got values from -\S+ to 50"),
    ],
)
@pytest.mark.parametrize("half", ["soft", "windows"])
def test_bad_values_are_refused_at_once(where, value, says, half):
    given = dict(zip(("similarity", "relevance"), batch(12), strict=True))
    given[where][2, 5] = value
    with pytest.raises(ValueError, match=says):
        matrix_loss(**given, **{half: {"soft": SoftNegatives(), "windows": sliding_windows()}[half]})


@pytest.mark.parametrize(("name", "half"), [("binary", "soft"), ("continuous", "windows")])
def test_one_half_of_both(name, half):
    """A term that is not used has no part in the gradient."""
    similarity, relevance = batch(12)
    both = {"soft": SoftNegatives(), "windows": sliding_windows()}
    alone = {half: both[half]}
    assert_same(
        step(lambda scores: getattr(matrix_loss(scores, relevance, **both), name), similarity),
        step(lambda scores: getattr(matrix_loss(scores, relevance, **alone), name), similarity),
    )


def test_a_half_that_is_left_out_is_zero():
    similarity, relevance = batch(5)
    assert matrix_loss(similarity, relevance, soft=SoftNegatives()).continuous == 0
    assert matrix_loss(similarity, relevance, windows=sliding_windows()).binary == 0


def test_labels_keep_their_precision():
    similarity = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    relevance = torch.tensor([[1.0, -0.9000010192], [1.0, 1.0]], dtype=torch.float64)  # in float32 above its edge
    value = matrix_loss(similarity, relevance, windows=sliding_windows()).continuous
    reference = plain(KendallWindowLoss(reduction="sum"))(similarity.double(), relevance)
    assert float(value) == pytest.approx(float(reference))
    assert float(value) != pytest.approx(
        float(matrix_loss(similarity, relevance.float(), windows=sliding_windows()).continuous)
    )


def test_second_derivative_is_refused():
    similarity, relevance = batch(8)
    leaf = similarity.requires_grad_()
    (gradient,) = torch.autograd.grad(whole(relevance)(leaf**2), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 12),
    seed=st.integers(0, 2**20),
    alpha=st.floats(0, 1.5),
    beta=st.floats(0.02, 0.4),
    levels=st.sampled_from([2, 10, 1000]),
)
def test_any_batch(size, seed, alpha, beta, levels):
    """Few levels: labels on the edges of windows, and tied."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.randn(size, size, generator=generator)
    relevance = (torch.rand(size, size, generator=generator) * 2 * levels).round() / levels - 1
    ids = torch.randint(0, size, (size,), generator=generator)
    ours = step(whole(relevance, ids, alpha=alpha, beta=beta), similarity)
    theirs = step(lambda scores: plain(BCLSLoss(alpha, beta))(scores, relevance, image_ids=ids), similarity)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
