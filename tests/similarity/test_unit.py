import pytest
import torch

from bcls.models.scoring import cosine, unit


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_equals_the_authors_formula(dim):
    values = torch.randn(4, 5, 6, dtype=torch.float64, requires_grad=True)
    plain = values / (values.pow(2).sum(dim, keepdim=True).sqrt() + 1e-8)
    torch.testing.assert_close(unit(values, dim), plain)
    weights = torch.randn_like(plain)
    (ours,) = torch.autograd.grad((unit(values, dim) * weights).sum(), values)
    (expected,) = torch.autograd.grad((plain * weights).sum(), values)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zero_stays_zero_without_gradient(dtype):
    values = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=dtype, requires_grad=True)
    done = unit(values)
    done.sum().backward()
    assert done.dtype == dtype
    assert done[0].tolist() == [0.0, 0.0]
    assert values.grad[0].tolist() == [0.0, 0.0]
    assert values.grad.isfinite().all()


def test_half_precision_does_not_overflow():
    values = torch.full((1, 4), 60_000.0, dtype=torch.float16)
    torch.testing.assert_close(unit(values), torch.full((1, 4), 0.5, dtype=torch.float16))


def test_short_vectors_in_half_precision_are_finite():
    values = torch.full((1, 4), 6e-7, dtype=torch.float16)
    assert unit(values).dtype == torch.float16
    torch.testing.assert_close(unit(values), torch.full((1, 4), 0.5, dtype=torch.float16), atol=1e-2, rtol=0)


def test_cosine_equals_torch():
    images, texts = torch.randn(3, 5), torch.randn(4, 5)
    expected = torch.nn.functional.cosine_similarity(images[:, None], texts[None], dim=-1)
    torch.testing.assert_close(cosine(images, texts), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cosine_is_exact_under_autocast(dtype):
    images, texts = torch.randn(3, 5).to(dtype), torch.randn(4, 5).to(dtype)
    expected = cosine(images.double(), texts.double()).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = cosine(images, texts)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)


def test_shapes_must_fit():
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 4\)"):
        cosine(torch.zeros(2, 3), torch.zeros(2, 4))
