"""Similarity vectors: the gradient written by hand, in every dtype, and images in parts."""

import pytest
import torch

from bcls.models import similarity_vectors as module
from bcls.models.cross_attention import image_side
from bcls.models.layers import Padded
from bcls.models.similarity_vectors import CaptionSide, similarity_vectors
from tests.models import factories
from tests.reference import sgraf


def inputs(dtype=torch.float64, *, images=3, lengths=(4, 1, 2), regions=(5, 3, 5), width=4, nodes=3):
    """Regions, image vectors, words with a zero row first, caption vectors and layers; and both masks."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    words = torch.arange(max(lengths) + 1) <= torch.tensor(lengths)[:, None]
    real = torch.arange(max(regions)) < torch.tensor(regions)[:, None]
    rows = drawn(len(lengths), words.shape[1], width) * words[..., None]
    rows[:, 0] = 0
    values = [drawn(images, max(regions), width) * real[..., None], drawn(images, width), rows]
    values += [drawn(len(lengths), width), drawn(nodes, width), drawn(nodes), drawn(nodes, width), drawn(nodes)]
    return [one.requires_grad_() for one in values], words, torch.tensor(regions)


def vectors(regions, image_vectors, words, caption_vectors, *layers, mask, lengths):
    side = image_side(Padded(regions, lengths), image_vectors)
    found = similarity_vectors(side, CaptionSide(words * mask[..., None], mask, caption_vectors), layers, 9.0)
    return found * mask[..., None]


def test_gradients_are_those_of_the_function():
    values, mask, lengths = inputs()
    values[2] = values[2].detach()  # a zero row has no direction, and is no input

    def scored(*given):
        return vectors(*given, mask=mask, lengths=lengths)

    assert torch.autograd.gradcheck(scored, values)


@pytest.mark.parametrize("images", [1, 2])
def test_images_in_parts_give_the_same_results(images, monkeypatch):
    found = []
    for parts in (None, lambda count, *_: [slice(start, start + images) for start in range(0, count, images)]):
        if parts is not None:
            monkeypatch.setattr(module, "_image_parts", parts)
        values, mask, lengths = inputs()
        out = vectors(*values, mask=mask, lengths=lengths)
        found.append((out, torch.autograd.grad(out.square().mul(torch.arange(3)).sum(), values)))
    torch.testing.assert_close(found[0], found[1])


def test_image_parts_are_equal_and_within_the_limit():
    for device in ("cpu", "cuda"):
        most = 1 << 20 if device == "cpu" else 1 << 27
        for images, numbers in ((0, 5), (1, 1 << 40), (128, 24 * 128 * 1024), (7, 1)):
            parts = module._image_parts(images, numbers, torch.device(device))
            assert [one for part in parts for one in range(images)[part]] == list(range(images))
            assert all(part.stop - part.start == 1 or (part.stop - part.start) * numbers <= most for part in parts)


def rows(codes):
    return [row[: int(length)] for row, length in zip(codes.values, codes.full_lengths, strict=True)]


def relative_error(found, expected):
    return float((found.double() - expected).norm() / expected.norm().clamp(min=0.02))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["sgr", "saf"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("lengths", [[4], [1], [3, 1, 6, 4, 1, 5]])
def test_scores_and_gradients_equal_the_loop_over_captions(name, training, dtype, tolerance, lengths):
    """The loop runs in float64 on the same numbers; one pair, captions of one word, and captions of all lengths."""
    sizes = {"width": 32, "similarity_width": 16, "regions": 7}
    model = factories.model(name, **sizes).train(training)
    exact = factories.model(name, **sizes).double().train(training)
    batch = len(lengths)
    images = factories.codes(batch, 7, ([7, 3, 5] * batch)[:batch], width=32, dtype=torch.float32)
    texts = factories.codes(batch, max(lengths), lengths, width=32, seed=3, dtype=torch.float32)
    images, texts = (Padded(one.values.detach().to(dtype).requires_grad_(), one.lengths) for one in (images, texts))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        scores = model.scores(images, texts)
    weights = torch.linspace(-1, 2, scores.numel(), dtype=torch.float64).view_as(scores)
    (scores * weights).sum().backward()
    codes = [Padded(one.values.detach().double().requires_grad_(), one.lengths) for one in (images, texts)]
    p = {**dict(exact.named_parameters()), **{key: one.clone() for key, one in exact.named_buffers()}}
    if training and batch == 1:  # the self-attention of a single image uses its running statistics
        vectors = exact.image_vectors(codes[0])
        expected = loop_with_vectors(p, codes, vectors, exact, training)
    else:
        steps = getattr(model.config, "steps", None)
        regions, words = (rows(one) for one in codes)
        expected = sgraf.scores(p, regions, words, steps=steps, training=training, per_region=False)
    (expected * weights).sum().backward()
    assert scores.dtype == torch.float32
    assert relative_error(scores.detach(), expected.detach()) < tolerance
    for found, old in ((images.values, codes[0].values), (texts.values, codes[1].values)):
        assert relative_error(found.grad, old.grad) < tolerance
    for (key, one), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        if key.startswith("head."):
            assert relative_error(one.grad, other.grad) < tolerance, key
    if name == "saf":
        for key in ("head.norm.running_mean", "head.norm.running_var"):
            assert relative_error(model.get_buffer(key), p[key]) < tolerance


def loop_with_vectors(p, codes, image_vectors, model, training):
    """Scores of the loop with the vectors of whole images given."""
    columns = []
    for words in rows(codes[1]):
        caption = sgraf.text_vector(p, words)
        graphs = [
            sgraf.nodes(p, image, vector, words, caption, 9.0)
            for image, vector in zip(rows(codes[0]), image_vectors, strict=True)
        ]
        if hasattr(model.config, "steps"):
            columns.append(torch.stack([sgraf.sgr(p, graph, model.config.steps) for graph in graphs]))
        else:
            columns.append(sgraf.saf(p, graphs, training=training))
    return torch.stack(columns, 1)
