"""CLIP and SigLIP checkpoints give what transformers gives."""

import math

import pytest
import torch

from bcls.models.config import DualConfig
from bcls.models.dual import DualModel
from tests.models.dual import made

PICTURES = [made.picture(50, 40, seed=0), made.picture(20, 70, seed=1)]


@pytest.fixture(params=["clip", "siglip"])
def kind(request):
    return request.param


@pytest.fixture
def model(kind, checkpoints):
    return DualModel(DualConfig(image="clip", model=str(checkpoints[kind])))


def theirs(kind, folder, texts, pictures=PICTURES):
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
    expected = theirs(kind, checkpoints[kind], made.TEXTS)
    images, texts = model.encode_images(PICTURES), model.encode_texts(made.TEXTS)
    torch.testing.assert_close(images, expected.image_embeds, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(texts, expected.text_embeds, atol=1e-5, rtol=1e-4)
    scaled = model.similarity(PICTURES, made.TEXTS) / model.initial_temperature + (model.initial_bias or 0.0)
    torch.testing.assert_close(scaled, expected.logits_per_image, atol=1e-4, rtol=1e-4)


def test_long_captions_are_cut(kind, model, checkpoints):
    long = [" ".join(made.WORDS * 3)]
    expected = theirs(kind, checkpoints[kind], long)
    torch.testing.assert_close(model.encode_texts(long), expected.text_embeds, atol=1e-5, rtol=1e-4)


def test_temperature(kind, model):
    expected = 0.07 if kind == "clip" else math.exp(-2.0)
    assert model.initial_temperature == pytest.approx(expected, rel=1e-3)
    assert model.initial_bias == (None if kind == "clip" else -3.0)


def test_token_numbers_with_any_padding(model):
    prepared = model.prepare_texts(made.TEXTS)
    wider = torch.nn.functional.pad(prepared.values, (0, 2), value=5)
    found = model.encode_texts((wider, prepared.lengths))
    torch.testing.assert_close(found, model.encode_texts(made.TEXTS))


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
    torch.testing.assert_close(again.similarity(PICTURES, made.TEXTS), model.similarity(PICTURES, made.TEXTS))
    assert again.initial_temperature == model.initial_temperature


def test_heads_may_be_added(kind, checkpoints):
    config = DualConfig(image="clip", model=str(checkpoints[kind]), image_head="linear", text_head="mlp", width=7)
    model = DualModel(config)
    assert model.encode_images(PICTURES).shape == (2, 7)
    assert list(model.parameter_groups()) == ["heads"]
