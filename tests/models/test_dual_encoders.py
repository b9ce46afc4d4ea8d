"""Encoders of the dual model: CLIP and SigLIP towers equal transformers, and so does their preprocessing."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from bcls.models import load
from bcls.models.config import DualConfig
from bcls.models.dual import DualModel
from bcls.models.dual_encoders import read_preprocessing
from tests.models import factories

IMAGES = [factories.image(50, 40, seed=0), factories.image(20, 70, seed=1)]


@pytest.fixture(params=["clip", "siglip"])
def kind(request):
    return request.param


@pytest.fixture
def model(kind, checkpoints):
    return DualModel(DualConfig(image="clip", model=str(checkpoints[kind])))


def theirs(kind, folder, texts, pictures=IMAGES):
    """Outputs of the library's own model on its own tokenizer's and processor's outputs."""
    from transformers import AutoTokenizer, CLIPModel, SiglipModel
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    model = (CLIPModel if kind == "clip" else SiglipModel).from_pretrained(folder).eval()
    processor = (CLIPImageProcessorPil if kind == "clip" else SiglipImageProcessorPil).from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    padding = {"padding": True} if kind == "clip" else {"padding": "max_length"}
    words = tokenizer(texts, truncation=True, max_length=12, return_tensors="pt", **padding)
    words = words if kind == "clip" else {"input_ids": words["input_ids"]}
    words = {name: words[name] for name in ("input_ids", "attention_mask") if name in words}
    pixels = processor(images=pictures, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        return model(pixel_values=pixels, **words)


def test_vectors_are_theirs(kind, model, checkpoints):
    expected = theirs(kind, checkpoints[kind], factories.TEXTS)
    images, texts = model.encode_images(IMAGES), model.encode_texts(factories.TEXTS)
    torch.testing.assert_close(images, expected.image_embeds, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(texts, expected.text_embeds, atol=1e-5, rtol=1e-4)
    scaled = model.similarity(IMAGES, factories.TEXTS) / model.initial_temperature + (model.initial_bias or 0.0)
    torch.testing.assert_close(scaled, expected.logits_per_image, atol=1e-4, rtol=1e-4)


def test_long_captions_are_cut(kind, model, checkpoints):
    long = [" ".join(factories.WORDS * 3)]
    expected = theirs(kind, checkpoints[kind], long)
    torch.testing.assert_close(model.encode_texts(long), expected.text_embeds, atol=1e-5, rtol=1e-4)


def test_temperature(kind, model):
    expected = 0.07 if kind == "clip" else math.exp(-2.0)
    assert model.initial_temperature == pytest.approx(expected, rel=1e-3)
    assert model.initial_bias == (None if kind == "clip" else -3.0)


def test_token_numbers_with_any_padding(model):
    prepared = model.prepare_texts(factories.TEXTS)
    wider = torch.nn.functional.pad(prepared.values, (0, 2), value=5)
    found = model.encode_texts((wider, prepared.lengths))
    torch.testing.assert_close(found, model.encode_texts(factories.TEXTS))


def test_wrong_pixels_are_refused(model):
    with pytest.raises(ValueError, match=r"`images`: expected .*\(N, 3, 32, 32\), got \(1, 3, 16, 16\)"):
        model.encode_images(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))


def test_another_kind_is_refused(checkpoints):
    with pytest.raises(ValueError, match="`model`: expected a checkpoint of CLIPModel or SiglipModel, got a bert"):
        DualModel(DualConfig(image="clip", model=str(checkpoints["bert"])))


def test_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`model`: expected a folder or hub name with a config\.json, got"):
        DualModel(DualConfig(image="clip", model=str(tmp_path)))


def test_files_make_the_same_model_without_the_checkpoint(kind, model, tmp_path):
    for name, content in model.files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    config = DualConfig(**{**model.as_dict(), "model": "gone/away"})
    again = DualModel(config, folder=tmp_path)
    again.load_trained_state(model.trained_state())
    torch.testing.assert_close(again.similarity(IMAGES, factories.TEXTS), model.similarity(IMAGES, factories.TEXTS))
    assert again.initial_temperature == model.initial_temperature


@pytest.mark.parametrize("change", ["other", "gone"])
def test_a_changed_tokenizer_is_an_error_when_the_model_is_loaded(model, tmp_path, change):
    model.save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / "encoder" / "tokenizer.json"
    content = path.read_text(encoding="utf-8")
    path.unlink()
    if change == "other":
        path.write_text(content + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json`: expected a file .*copy the whole folder again"):
        load(tmp_path / "saved")


def test_heads_may_be_added(kind, checkpoints):
    config = DualConfig(image="clip", model=str(checkpoints[kind]), image_head="linear", text_head="mlp", width=7)
    model = DualModel(config)
    assert model.encode_images(IMAGES).shape == (2, 7)
    assert list(model.parameter_groups()) == ["heads"]


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
    image = factories.image(*size)
    expected = processor(content)(images=image, return_tensors="pt")["pixel_values"]
    pixels = found.prepare(image)
    assert pixels.dtype == torch.uint8
    torch.testing.assert_close(found.normalize(pixels[None]), expected.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("content", [CLIP, SIGLIP])
def test_defaults_are_those_of_the_class(content):
    image = factories.image(300, 240)
    expected = processor(content)(images=image, return_tensors="pt")["pixel_values"]
    found = read_preprocessing("here", content, 224)
    torch.testing.assert_close(found.normalize(found.prepare(image)[None]), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_other_modes(mode):
    image = factories.image().convert(mode)
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
    found, image = read_preprocessing("here", content, 32), factories.image()
    expected = processor(content)(images=image, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(found.normalize(found.prepare(image)[None]), expected.float(), atol=1e-4, rtol=1e-5)


def test_a_crop_with_one_number():
    assert read_preprocessing("here", {**CLIP, "crop_size": {"shortest_edge": 32}}, 32).resize.crop == (32, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"do_resize": False}, "`here`: expected preprocessing that resizes images"),
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
