"""Relevance labels from embeddings."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bcls.labels.relevance import relevance
from tests.reference.relevance import relevance as by_loops


@st.composite
def problems(draw):
    images = draw(st.integers(1, 5))
    counts = draw(st.lists(st.integers(1, 4), min_size=images, max_size=images))
    owner = draw(st.permutations(np.repeat(np.arange(images), counts).tolist()))
    captions, width = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1.0, 1e-3, 100.0]))
    reference, candidates = rng.standard_normal((len(owner), width)), rng.standard_normal((captions, width))
    own = draw(st.none() | st.just(rng.integers(0, images, captions)))
    return (reference * scale).astype(np.float32), candidates.astype(np.float32), owner, own


@given(problems(), st.sampled_from(["max", "mean"]))
def test_labels_equal_the_definition(problem, aggregate):
    labels = relevance(*problem, aggregate=aggregate)
    assert labels.dtype == np.float32
    np.testing.assert_allclose(labels, by_loops(*problem, aggregate=aggregate), atol=2e-6)
    assert labels.min() >= -1.0
    assert labels.max() <= 1.0
    if problem[3] is not None:
        assert (labels[problem[3], np.arange(len(problem[3]))] == 1.0).all()


@given(problems())
def test_labels_do_not_depend_on_order_and_block_size(problem):
    reference, captions, owner, own = problem
    labels = relevance(*problem)
    assert (labels >= relevance(*problem, aggregate="mean") - 1e-6).all()
    backwards = relevance(reference[::-1], captions[::-1], owner[::-1], None if own is None else own[::-1])
    np.testing.assert_allclose(backwards[:, ::-1], labels, atol=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        # Blocks of two captions, the last one shorter.
        patch.setitem(relevance.__globals__, "_BLOCK", 2 * labels.shape[0])
        np.testing.assert_allclose(relevance(*problem), labels, atol=1e-6)


def test_paired_is_the_cosine_with_the_only_caption():
    rng = np.random.default_rng(0)
    reference, captions, owner = rng.standard_normal((4, 8)), rng.standard_normal((6, 8)), [2, 0, 3, 1]
    labels = relevance(reference, captions, owner, aggregate="paired")
    np.testing.assert_allclose(labels, by_loops(reference, captions, owner), atol=1e-6)
    assert (labels == relevance(reference, captions, owner)).all()
    with pytest.raises(ValueError, match=r"exactly one reference row per image .*paired.* got 2 for image 1"):
        relevance(reference, captions, [0, 1, 1, 2], aggregate="paired")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_give_tensors(dtype):
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(6, 16, generator=generator).to(dtype)
    captions = torch.randn(16, 8, generator=generator).to(dtype).T[::2]
    owner = torch.tensor([0, 1, 2, 2, 1, 0])
    labels = relevance(reference.requires_grad_(), captions, owner, torch.tensor([0, 1, 2, 0]))
    assert isinstance(labels, torch.Tensor)
    assert labels.dtype == torch.float32
    assert not labels.requires_grad
    expected = by_loops(reference.detach().double(), captions.double(), owner.tolist(), [0, 1, 2, 0])
    np.testing.assert_allclose(labels, expected, atol=2e-6)


def test_float16_rows_are_normalized_in_float32():
    rows = np.random.default_rng(1).standard_normal((50, 384))
    stored = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    labels = relevance(stored, stored, np.arange(50))
    assert abs(np.diag(labels) - 1.0).max() < 1e-6
    assert labels.max() <= 1.0


def test_read_only_arrays_are_not_changed_and_give_no_warning():
    rows = np.array([[3.0, 4.0], [1.0, 0.0]], dtype=np.float32)
    rows.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(relevance(rows, rows, [0, 1]), [[1.0, 0.6], [0.6, 1.0]], atol=1e-6)
    assert rows[0].tolist() == [3.0, 4.0]


def test_very_long_and_short_vectors():
    rows = np.array([[3e30, 4e30], [1e-30, 0.0]], dtype=np.float32)
    np.testing.assert_allclose(relevance(rows, rows, [0, 1]), [[1.0, 0.6], [0.6, 1.0]], atol=1e-6)


def test_single_and_empty_inputs():
    one = np.array([[2.0]])
    assert relevance(one, -one, [0]).tolist() == [[-1.0]]
    assert relevance(one, -one, [0], [0]).tolist() == [[1.0]]
    assert relevance(one, np.zeros((0, 1)), [0], np.zeros(0, dtype=int)).shape == (1, 0)


ROWS = np.eye(3, 4)
ZERO, BAD = np.eye(3, 4), np.eye(3, 4)
ZERO[1] = 0.0
BAD[2, 1] = np.inf


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": [[1.0, 0.0]]}, "`reference`: expected a matrix .* got list"),
        ({"reference": np.zeros((0, 4)), "reference_image": np.zeros(0, dtype=int)}, "`reference`: expected at least"),
        (
            {"reference": ZERO},
            "`reference`: .* got a zero vector in row 1; remove that caption",
        ),
        ({"captions": ZERO}, "`captions`: .* got a zero vector in row 1; remove that caption"),
        ({"reference": BAD}, "`reference`: expected finite numbers, got NaN or infinity in row 2"),
        ({"captions": torch.tensor(BAD * np.nan)}, "`captions`: expected finite numbers, got NaN or infinity in row 0"),
        ({"captions": np.ones(4)}, r"`captions`.*shape \(4,\)"),
        ({"captions": np.ones((2, 5))}, "`captions`: expected rows of length 4, as `reference`, got 5"),
        ({"captions": np.ones((2, 4), dtype=complex)}, "`captions`.*complex128"),
        ({"captions": torch.ones((2, 4), dtype=torch.complex64)}, "`captions`.*complex64"),
        ({"reference_image": [0, 1]}, r"`reference_image`: expected 3 integers.*shape \(2,\)"),
        ({"reference_image": [0.0, 1.0, 2.0]}, "`reference_image`.*float64"),
        ({"reference_image": [0, 1, 3]}, "at least one reference row for each image, got none for image 2"),
        ({"reference_image": [1, 2, 10**15]}, "got none for image 0"),
        ({"reference_image": [0, 1, -1]}, "`reference_image`: expected integers from 0, got -1 at index 2"),
        ({"caption_image": [0, 1]}, "`caption_image`: expected 3 integers"),
        ({"caption_image": [0, 1, 3]}, "`caption_image`: expected integers 0 to 2, got 3 at index 2"),
        ({"aggregate": "maximum"}, "`aggregate`: expected one of 'max', 'mean', 'paired', got 'maximum'"),
    ],
)
def test_invalid_arguments_raise(changes, message):
    arguments = {"reference": ROWS, "captions": ROWS, "reference_image": [0, 1, 2]} | changes
    with pytest.raises(ValueError, match=message):
        relevance(**arguments)


def test_rows_of_later_blocks_are_numbered_correctly(monkeypatch):
    monkeypatch.setitem(relevance.__globals__, "_BLOCK", 3)
    with pytest.raises(ValueError, match="zero vector in row 1"):
        relevance(ROWS, ZERO, [0, 1, 2])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_tensors_on_a_gpu():
    reference, captions, owner = torch.randn(9, 16), torch.randn(5, 16), [0, 1, 2, 2, 2, 3, 0, 1, 3]
    for aggregate in ("max", "mean"):
        labels = relevance(reference.cuda(), captions.numpy(), owner, [0, 1, 2, 3, 0], aggregate)
        assert labels.is_cuda
        torch.testing.assert_close(
            labels.cpu(), relevance(reference, captions, owner, [0, 1, 2, 3, 0], aggregate), atol=1e-5, rtol=0
        )
