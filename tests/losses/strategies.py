"""Batches made by hypothesis, with the ties, edges and repeats that real batches have."""

import torch
from hypothesis import strategies as st

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
