import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bcls.features.regions import VIEWS, ZOOMS, crops, zoomed
from tests.reference.crops import ten_crop, zooms


def noise(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 90), height=st.integers(1, 90), side=st.sampled_from([1, 8, 14, 35]))
def test_ten_crops_are_the_reference(width, height, side):
    image = noise(width, height)
    cut = crops(image, side, "ten-crop", Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(cut.numpy(), ten_crop(image, side, Image.Resampling.BILINEAR))
    assert torch.equal(crops(image, side, "centre", Image.Resampling.BILINEAR)[0], cut[4])


@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 40), height=st.integers(1, 40), side=st.integers(1, 20), view=st.sampled_from([*ZOOMS]))
def test_zooms_are_the_reference(width, height, side, view):
    image = noise(width, height)
    cut = crops(image, side, view, Image.Resampling.BILINEAR).numpy()
    np.testing.assert_allclose(cut, zooms(image, side, ZOOMS[view], Image.Resampling.BILINEAR), atol=1e-3)


def test_zooms_of_many_pictures_are_those_of_each():
    pictures = [noise(30, 20, seed) for seed in range(3)]
    together = zoomed(torch.cat([crops(one, 16) for one in pictures]), "six-crop")
    assert torch.equal(together, torch.stack([crops(one, 16, "six-crop") for one in pictures]))
    assert torch.equal(zoomed(together[:, 0], "six-crop"), together)


def test_number_of_crops():
    for view, count in VIEWS.items():
        cut = crops(noise(50, 40), 28, view)
        assert cut.shape == (count, 3, 28, 28)
        assert cut.dtype == (torch.float32 if view in ZOOMS else torch.uint8)


def test_a_square_picture_of_the_size_is_kept():
    image = noise(28, 28)
    np.testing.assert_array_equal(crops(image, 28)[0].permute(1, 2, 0).numpy(), np.asarray(image))


def test_the_picture_may_change_after():
    image = noise(28, 28)
    pixels = crops(image, 28).clone()
    seen = crops(image, 28)
    image.paste("black", (0, 0, 28, 28))
    assert torch.equal(seen, pixels)


def test_unknown_view():
    with pytest.raises(ValueError, match="did you mean 'centre'"):
        crops(noise(5, 5), 4, "center")
