"""Crops of images and regions of feature grids."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bcls.features.regions import (
    CROP_BOXES,
    VIEWS,
    ZOOMS,
    crops,
    cut_boxes,
    image_pixels,
    image_views,
    parse_regions,
    pool_regions,
    zoomed,
)
from tests.reference.crops import ten_crop, zooms
from tests.reference.regions import pool


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 9), st.integers(1, 9))
def test_regions_equal_the_reference(data, height, width):
    rows, columns = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    grid = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(height * width))
    pooled = pool_regions(grid, (rows, columns))
    assert pooled.shape == (2, rows * columns, 3)
    for image in range(2):
        torch.testing.assert_close(pooled[image], torch.tensor(pool(grid[image].tolist(), rows, columns)))


def test_default_is_36_regions_and_one_region_is_the_mean():
    grid = torch.randn(2, 4, 7, 7)
    assert pool_regions(grid).shape == (2, 36, 4)
    torch.testing.assert_close(pool_regions(grid, 1)[:, 0], grid.mean((2, 3)))
    assert torch.equal(pool_regions(grid, 49), grid.flatten(2).transpose(1, 2))


def test_memory_format_and_gradients():
    grid = torch.randn(2, 4, 7, 7, requires_grad=True)
    last = grid.detach().to(memory_format=torch.channels_last)
    torch.testing.assert_close(pool_regions(last, (6, 6)), pool_regions(grid, 36))
    pool_regions(grid, (2, 3)).sum().backward()
    assert grid.grad is not None
    torch.testing.assert_close(grid.grad.sum(), torch.tensor(2.0 * 4 * 6))


@pytest.mark.parametrize("regions", [0, -4, 35, 64, (8, 1), (0, 3)])
def test_invalid_numbers_of_regions_raise(regions):
    with pytest.raises(ValueError, match="`regions`: expected"):
        pool_regions(torch.zeros(1, 2, 7, 7), regions)


def test_invalid_grid_raises():
    with pytest.raises(ValueError, match="`grid`: expected"):
        pool_regions(torch.zeros(2, 7, 7))


@pytest.mark.parametrize("text", ["", "35", "0", "0x4", "6x", "6x6x6", "six", "-36", "6 x 6", "crops", "crops-35"])
def test_invalid_texts_raise(text):
    with pytest.raises(ValueError, match=r"`regions`: expected a square number, ROWSxCOLUMNS, 'crops-36' or 'global'"):
        parse_regions(text)


def test_36_different_crops_cover_the_image():
    boxes = np.array(CROP_BOXES)
    assert parse_regions("crops-36") == "crops-36"
    assert boxes.shape == (36, 4)
    assert len(np.unique(boxes.round(6), axis=0)) == 36
    assert boxes[0].tolist() == [0, 0, 1, 1]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] <= 1).all()
    np.testing.assert_array_less(0.35, boxes[:, 2:] - boxes[:, :2])
    mirrored = np.column_stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]]).round(6)
    assert {tuple(one) for one in mirrored} == {tuple(one) for one in boxes.round(6)}


@pytest.mark.parametrize("size", [(50, 40), (300, 200), (90, 7)])
def test_crops_are_those_of_pillow(size):
    image = noise(*size).point(lambda value: 96 + value // 4)  # Pillow clips to 0..255 between its two passes
    found = cut_boxes(image_pixels(image), 24)
    for crop, (left, upper, right, lower) in zip(found, CROP_BOXES, strict=True):
        edges = left * image.width, upper * image.height, right * image.width, lower * image.height
        expected = image.crop(tuple(map(round, edges))).resize((24, 24), Image.Resampling.BICUBIC)
        torch.testing.assert_close(crop, image_pixels(expected)[0].float(), atol=1.1, rtol=0)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (1, 30)])
def test_tiny_images_have_all_crops(size):
    found = cut_boxes(image_pixels(noise(*size)), 8)
    assert found.shape == (36, 3, 8, 8)
    assert found.isfinite().all()


def noise(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 90), height=st.integers(1, 90), side=st.sampled_from([1, 8, 14, 35]))
def test_ten_crops_equal_the_reference(width, height, side):
    image = noise(width, height)
    cut = crops(image, side, "ten-crop", Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(cut.numpy(), ten_crop(image, side, Image.Resampling.BILINEAR))
    assert torch.equal(crops(image, side, "centre", Image.Resampling.BILINEAR)[0], cut[4])


@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 40), height=st.integers(1, 40), side=st.integers(1, 20), view=st.sampled_from([*ZOOMS]))
def test_zooms_equal_the_reference(width, height, side, view):
    image = noise(width, height)
    cut = crops(image, side, view, Image.Resampling.BILINEAR).numpy()
    np.testing.assert_allclose(cut, zooms(image, side, ZOOMS[view], Image.Resampling.BILINEAR), atol=1e-3)


def test_zooms_of_a_batch_equal_those_of_each_image():
    images = [noise(30, 20, seed) for seed in range(3)]
    together = zoomed(torch.cat([crops(one, 16) for one in images]), "six-crop")
    assert torch.equal(together, torch.stack([crops(one, 16, "six-crop") for one in images]))
    assert torch.equal(zoomed(together[:, 0], "six-crop"), together)


def test_number_of_crops():
    for view, count in VIEWS.items():
        cut = crops(noise(50, 40), 28, view)
        assert cut.shape == (count, 3, 28, 28)
        assert cut.dtype == (torch.float32 if view in ZOOMS else torch.uint8)


def test_image_of_the_right_size_is_not_resized():
    image = noise(28, 28)
    np.testing.assert_array_equal(crops(image, 28)[0].permute(1, 2, 0).numpy(), np.asarray(image))


def test_crops_do_not_share_memory_with_the_image():
    image = noise(28, 28)
    pixels = crops(image, 28).clone()
    seen = crops(image, 28)
    image.paste("black", (0, 0, 28, 28))
    assert torch.equal(seen, pixels)


def test_unknown_view_raises():
    with pytest.raises(ValueError, match="did you mean 'centre'"):
        crops(noise(5, 5), 4, "center")


def test_random_crops_depend_only_on_the_id_and_their_number():
    image = noise(80, 60)
    views = image_views(image, "dög 1", 4, 0.5)
    assert views[0] is image
    assert [one.tobytes() for one in image_views(image, "dög 1", 2, 0.5)] == [one.tobytes() for one in views[:3]]
    others = image_views(image, "dög 2", 4, 0.5)
    assert len({one.tobytes() for one in (*views, *others)}) == 9
    assert [one.size for one in image_views(image, "dög 1", 0, 0.5)] == [(80, 60)]
