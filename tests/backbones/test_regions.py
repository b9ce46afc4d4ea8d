import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.features.regions import parse_regions, pool_regions
from tests.reference.regions import pool


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 9), st.integers(1, 9))
def test_regions_are_the_reference(data, height, width):
    rows, columns = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    grid = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(height * width))
    pooled = pool_regions(grid, (rows, columns))
    assert pooled.shape == (2, rows * columns, 3)
    for image in range(2):
        torch.testing.assert_close(pooled[image], torch.tensor(pool(grid[image].tolist(), rows, columns)))


def test_default_is_36_and_one_is_the_mean():
    grid = torch.randn(2, 4, 7, 7)
    assert pool_regions(grid).shape == (2, 36, 4)
    torch.testing.assert_close(pool_regions(grid, 1)[:, 0], grid.mean((2, 3)))
    assert torch.equal(pool_regions(grid, 49), grid.flatten(2).transpose(1, 2))


def test_channels_last_and_gradients():
    grid = torch.randn(2, 4, 7, 7, requires_grad=True)
    last = grid.detach().to(memory_format=torch.channels_last)
    torch.testing.assert_close(pool_regions(last, (6, 6)), pool_regions(grid, 36))
    pool_regions(grid, (2, 3)).sum().backward()
    assert grid.grad is not None
    torch.testing.assert_close(grid.grad.sum(), torch.tensor(2.0 * 4 * 6))


@pytest.mark.parametrize("regions", [0, -4, 35, 64, (8, 1), (0, 3)])
def test_wrong_numbers_are_refused(regions):
    with pytest.raises(ValueError, match="`regions`: expected"):
        pool_regions(torch.zeros(1, 2, 7, 7), regions)


def test_wrong_grid():
    with pytest.raises(ValueError, match="`grid`: expected"):
        pool_regions(torch.zeros(2, 7, 7))


@pytest.mark.parametrize("text", ["", "35", "0", "0x4", "6x", "6x6x6", "six", "-36", "6 x 6"])
def test_what_is_no_number_of_regions(text):
    with pytest.raises(ValueError, match="`regions`: expected"):
        parse_regions(text)
