import numpy as np
import pytest
from PIL import Image

from bcls.data.images import random_view


def noise(size):
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [(40, 30), (3, 200), (1, 1), (200, 3)])
def test_crops_stay_inside(size):
    picture = noise(size)
    for caption in range(20):
        view = random_view(picture, (1, 0, caption), 0.5)
        assert view.width <= size[0]
        assert view.height <= size[1]
        assert min(view.size) > 0
        if size == (40, 30):
            assert view.width * view.height >= 0.45 * 40 * 30


def test_a_view_is_a_part_of_the_picture_mirrored_half_of_the_time():
    ramp = Image.fromarray(np.broadcast_to(np.arange(0, 200, 2, dtype=np.uint8)[None, :, None], (80, 100, 3)).copy())
    rising = [np.asarray(random_view(ramp, (seed,), 0.3))[0, :, 0].astype(int) for seed in range(60)]
    assert all(abs(np.diff(row)).tolist() == [2] * (len(row) - 1) for row in rising)
    mirrored = sum(row[0] > row[-1] for row in rising)
    assert 15 < mirrored < 45


def test_the_seed_alone_decides():
    picture = noise((50, 40))
    assert random_view(picture, (2**64 - 1, 3), 0.5).tobytes() == random_view(picture, (2**64 - 1, 3), 0.5).tobytes()
    assert len({random_view(picture, (1, view), 0.5).tobytes() for view in range(10)}) == 10
