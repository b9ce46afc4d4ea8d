"""Pictures as the image processors of transformers prepare them."""

import numpy as np
import pytest
import torch
from PIL import Image

from bcls.models.dual_encoders import read_preprocessing
from tests.models.dual.made import picture

CLIP = {"image_processor_type": "CLIPImageProcessor"}
SIGLIP = {"image_processor_type": "SiglipImageProcessor"}


def processor(content):
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    kind = CLIPImageProcessorPil if "CLIP" in content["image_processor_type"] else SiglipImageProcessorPil
    return kind(**{key: value for key, value in content.items() if key != "image_processor_type"})


@pytest.mark.parametrize("size", [(50, 40), (33, 90), (32, 32), (7, 5), (301, 64)])
@pytest.mark.parametrize(
    "content",
    [
        {**CLIP, "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
        {**CLIP, "size": 40, "crop_size": 32, "resample": 2, "image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3]},
        {**CLIP, "size": {"shortest_edge": 27}, "crop_size": 32},
        {**SIGLIP, "size": {"height": 32, "width": 32}, "resample": 2},
        {**SIGLIP, "size": {"height": 32, "width": 32}, "rescale_factor": 1 / 127.5},
    ],
)
def test_equal_to_the_processor(content, size):
    found = read_preprocessing("here", content, 32)
    image = picture(*size)
    expected = processor(content)(images=image, return_tensors="pt")["pixel_values"]
    pixels = found.prepare(image)
    assert pixels.dtype == torch.uint8
    torch.testing.assert_close(found.normalise(pixels[None]), expected.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("content", [CLIP, SIGLIP])
def test_defaults_are_those_of_the_class(content):
    image = picture(300, 240)
    expected = processor(content)(images=image, return_tensors="pt")["pixel_values"]
    found = read_preprocessing("here", content, 224)
    torch.testing.assert_close(found.normalise(found.prepare(image)[None]), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_other_modes(mode):
    image = picture().convert(mode)
    assert read_preprocessing("here", CLIP, 32).prepare(image).shape == (3, 32, 32)


def test_grey_is_grey():
    grey = Image.fromarray(np.full((9, 9), 100, np.uint8))
    assert read_preprocessing("here", SIGLIP, 4).prepare(grey).unique().tolist() == [100]


def test_another_side_is_refused():
    with pytest.raises(ValueError, match=r"`here`: expected preprocessing to 24 x 24 pixels, got 32 x 32"):
        read_preprocessing("here", {**CLIP, "size": 32, "crop_size": 32}, 24)


@pytest.mark.parametrize(
    "content",
    [
        {**CLIP, "size": 32, "crop_size": 32, "do_normalize": False},
        {**CLIP, "size": 32, "crop_size": 32, "do_rescale": False},
        {**CLIP, "size": [32, 32], "do_center_crop": False},
        {**SIGLIP, "size": {"height": 32, "width": 32}, "do_normalize": False, "do_rescale": False},
    ],
)
def test_steps_that_are_left_out(content):
    found, image = read_preprocessing("here", content, 32), picture()
    expected = processor(content)(images=image, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(found.normalise(found.prepare(image)[None]), expected.float(), atol=1e-4, rtol=1e-5)


def test_a_crop_with_one_number():
    assert read_preprocessing("here", {**CLIP, "crop_size": {"shortest_edge": 32}}, 32).crop == (32, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"do_resize": False}, "`here`: expected preprocessing that resizes pictures"),
        ({"crop_size": {"longest_edge": 32}}, "`here: crop_size`: expected a size in pixels"),
        ({"size": "32"}, "`here: size`: expected a size in pixels, got '32'"),
        ({"size": True}, "`here: size`: expected a size in pixels"),
        ({"size": [32, 32, 3]}, "`here: size`: expected a size in pixels"),
        ({"image_mean": None}, "`here: image_mean`: expected a sequence of numbers, got None"),
        ({"image_std": [0, 1, 1]}, "`here: image_std`: expected a finite number above 0"),
        ({"rescale_factor": 0}, "`here: rescale_factor`: expected a finite number above 0"),
        ({"resample": 77}, "`here: resample`: expected the number of one of Pillow's filters, got 77"),
        ({"rescale_offset": True}, "`here`: expected values scaled by one factor"),
    ],
)
def test_damaged_settings(content, message):
    with pytest.raises(ValueError, match=message):
        read_preprocessing("here", {**CLIP, **content}, 32)
