"""The part that reads images in the space of the caption encoder."""

import pytest
import torch
from torch.nn import functional

from bcls.models.combine import label_space_part, merge
from bcls.models.config import DualConfig, build
from bcls.models.padded import Padded


def made(width=384, **more):
    torch.manual_seed(0)
    return build(DualConfig(image="features", features=12, width=width, **more))


def data(images=40):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(images, 12, generator=draw)
    mix = torch.randn(12, 384, generator=draw)
    y = functional.normalize(
        x.repeat_interleave(2, 0) @ mix + 0.1 * torch.randn(2 * images, 384, generator=draw), dim=1
    )
    return x, y, torch.arange(images).repeat_interleave(2)


def test_it_is_ridge_regression_with_cosines():
    x, y, owner = data()
    part = label_space_part(made(), x, y, owner, ridge=0.5)
    means = (y[::2] + y[1::2]) / 2
    centred, target = x - x.mean(0), means - means.mean(0)
    gram = centred.T @ centred
    solved = torch.linalg.solve(gram + 0.5 * gram.diagonal().mean() * torch.eye(12), centred.T @ target)
    wanted = functional.normalize(centred @ solved, dim=1) @ functional.normalize(y - means.mean(0), dim=1).T
    found = part.similarity(x, Padded(y))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert (found.argmax(0) == owner).float().mean() > 0.9


def test_it_merges_with_trained_heads():
    x, y, owner = data()
    heads = made()
    part = label_space_part(heads, x, y, owner)
    both = merge([heads, part]).similarity(x, Padded(y))
    torch.testing.assert_close(both, (heads.similarity(x, Padded(y)) + part.similarity(x, Padded(y))) / 2)


@pytest.mark.parametrize(
    "model", [lambda: made(width=128), lambda: made(width=768, heads=2), lambda: made(text_head="none")]
)
def test_heads_that_cannot_hold_it_are_refused(model):
    with pytest.raises(ValueError, match="one head on each side with a width of at least 384"):
        label_space_part(model(), *data())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda owner: owner.clamp(max=38), "`image_of_caption`: expected a caption or more .* none for image 39"),
        (lambda owner: owner + 1, "`image_of_caption`: expected numbers from 0 to 39, got 40"),
        (lambda owner: owner - 1, "`image_of_caption`: expected numbers from 0 to 39, got -1"),
        (lambda owner: owner[:-1], "`image_of_caption`: expected a whole number for each of 80 captions"),
        (lambda owner: owner.float(), "`image_of_caption`: expected a whole number for each of 80 captions"),
    ],
)
def test_captions_without_an_image_and_images_without_a_caption(change, message):
    x, y, owner = data()
    with pytest.raises(ValueError, match=message):
        label_space_part(made(), x, y, change(owner))
