"""The Triton kernels of SGR and SAF against plain torch in float64: on a GPU, or in Triton's interpreter."""

import pytest
import torch
from torch.nn.functional import normalize

from bcls.losses.backends import without_kernels
from bcls.models import build
from bcls.models.cross_attention import image_side
from bcls.models.layers import Padded
from bcls.models.similarity_vectors import CaptionSide, kernels_for, similarity_vectors

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
#: Precisions with the largest relative error of values and gradients.
PRECISIONS = {torch.float16: 4e-3, torch.bfloat16: 3e-2} if GPU else {torch.float32: 2e-5, torch.float16: 4e-3}
#: Images, regions, width, nodes of the longest caption, width of a similarity vector.
SIZES = [(3, 5, 70, 6, 20), (1, 1, 16, 2, 3)]
SIZES += [(5, 36, 1024, 25, 256), (4, 60, 96, 100, 40), (130, 36, 256, 17, 128)] if GPU else [(2, 17, 65, 18, 33)]


def inputs(images, regions, width, nodes, size, *, masked):
    """Unit vectors, captions of every length, and layers, in float64."""
    torch.manual_seed(0)
    captions = max(3, images // 2)
    lengths = (torch.arange(captions) * 7 % (nodes - 1) + 1).clamp(max=nodes - 1)
    lengths[0] = nodes - 1
    mask = torch.arange(nodes) <= lengths[:, None]
    words = normalize(torch.randn(captions, nodes, width), dim=-1) * mask[..., None]
    words[:, 0] = 0
    values = [normalize(torch.randn(images, regions, width), dim=-1), normalize(torch.randn(images, width), dim=-1)]
    values += [words, normalize(torch.randn(captions, width), dim=-1)]
    values += [0.5 * torch.randn(*shape) for shape in ((size, width), (size,), (size, width), (size,))]
    counts = 1 + torch.arange(images) % regions if masked else None
    return [one.double().to(DEVICE) for one in values], mask.to(DEVICE), None if counts is None else counts.to(DEVICE)


def scored(values, mask, counts):
    """Similarity vectors and the gradients of a weighted sum of their squares."""
    regions, image_vectors, words, caption_vectors, *layers = leaves = [one.requires_grad_() for one in values]
    side = image_side(Padded(regions, counts), image_vectors)
    found = similarity_vectors(side, CaptionSide(words * mask[..., None], mask, caption_vectors), layers, 9.0)
    found = found * mask[..., None]
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(found)
    return [found, *torch.autograd.grad((found.square() * upstream).sum(), leaves)]


def relative_error(found, expected):
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm().clamp(min=1e-6))


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_similarity_vectors_and_gradients_are_those_of_plain_torch(sizes, masked, dtype):
    values, mask, counts = inputs(*sizes, masked=masked)
    rounded = [one.to(dtype) for one in values]
    assert kernels_for(rounded[0], sizes[3], sizes[4]) is not None
    expected = scored([one.double() for one in rounded], mask, counts)
    found = scored(rounded, mask, counts)
    assert [one.dtype for one in found] == [dtype] * len(found)
    with without_kernels():
        plain = scored(rounded, mask, counts)
    # Both round in the same precision, and cuBLAS may add long sums in half precision.
    for one, other, exact in zip(found, plain, expected, strict=True):
        assert relative_error(one, exact) < max(PRECISIONS[dtype], 1.5 * relative_error(other, exact))


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("asked", [1, None])
@pytest.mark.parametrize("sizes", SIZES)
def test_reasoning_mixes_the_real_nodes(sizes, asked, dtype):
    images, _, _, nodes, width = sizes
    _, mask, _ = inputs(*sizes, masked=False)
    torch.manual_seed(0)
    queries = torch.randn(images, len(mask), asked or nodes, width).to(DEVICE, dtype).requires_grad_()
    keys = torch.randn(images, len(mask), nodes, width).to(DEVICE, dtype).requires_grad_()
    upstream = torch.randn(queries.shape).to(DEVICE, dtype)
    found = kernels_for(keys, nodes, width).MixNodes.apply(queries, keys, mask)
    wide = [one.detach().double().requires_grad_() for one in (queries, keys)]
    expected = (wide[0] @ wide[1].mT).masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ wide[1]
    assert relative_error(found, expected) < PRECISIONS[dtype]
    gradients = torch.autograd.grad((found * upstream).sum(), (queries, keys))
    for one, other in zip(gradients, torch.autograd.grad((expected * upstream).sum(), wide), strict=True):
        assert relative_error(one, other) < PRECISIONS[dtype]


@pytest.mark.parametrize("name", ["saf", "sgr"])
def test_a_model_trains_with_the_gradients_of_plain_torch(name):
    """In one precision below float64, with captions of several lengths in blocks."""
    dtype = next(iter(PRECISIONS))
    torch.manual_seed(0)
    model = build({"name": name, "words": 20, "features": 8, "width": 32, "similarity_width": 16, "dropout": 0.0})
    model = model.to(DEVICE).train()
    regions, tokens = Padded(torch.randn(4, 36, 8).to(DEVICE)), torch.randint(20, (4, 9)).to(DEVICE)
    captions = Padded(tokens, torch.tensor([9, 2, 5, 3]).to(DEVICE))
    found = []
    for plain in (True, False):
        model.zero_grad()
        with torch.autocast(DEVICE, dtype, enabled=GPU), without_kernels() if plain else torch.enable_grad():
            scores = model.scores(model.image_codes(regions), model.text_codes(captions))
        scores.float().square().sum().backward()
        found.append(torch.cat([one.grad.flatten() for one in model.parameters()]))
    assert relative_error(found[1], found[0].double()) < 10 * PRECISIONS[dtype]


@pytest.mark.parametrize(("regions", "nodes", "width"), [(65, 4, 4), (4, 129, 4), (4, 4, 257)])
def test_what_does_not_fit_is_left_to_plain_torch(regions, nodes, width):
    assert kernels_for(torch.zeros(2, regions, 8, dtype=torch.float16, device=DEVICE), nodes, width) is None


def test_float64_is_left_to_plain_torch():
    assert kernels_for(torch.zeros(2, 4, 8, dtype=torch.float64, device=DEVICE), 4, 4) is None
