"""What a dual encoder may be made from."""

import pytest

from bcls.models.config import DualConfig, model_config


def test_what_is_left_out_is_filled_in():
    plain = DualConfig()
    assert (plain.text, plain.image_head, plain.text_head, plain.text_pooling) == ("minilm", "linear", "mlp", "mean")
    clip = DualConfig(image="clip", model="x")
    assert (clip.text, clip.image_head, clip.text_head) == ("clip", "none", "none")
    assert DualConfig(text="gru").text_pooling == "last"


def test_from_plain_settings():
    config = model_config(
        {"name": "dual", "image": "features", "features": 8, "lora_targets": ["query"], "head_weights": [1]}
    )
    assert config == DualConfig(image="features", features=8, lora_targets=("query",), head_weights=(1.0,))
    with pytest.raises(ValueError, match="did you mean 'text_head'"):
        model_config({"name": "dual", "text_haed": "mlp"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image": "clip"}, "`model`: expected a CLIP or SigLIP checkpoint, got none"),
        ({"image": "clip", "model": "x", "text": "minilm"}, "`text`: expected clip together with"),
        ({"text": "clip"}, "`text`: expected clip together with"),
        ({"model": "x"}, "`model`: expected none without"),
        ({"image": "clip", "model": "x", "image_pooling": "gpo"}, "`image_pooling`: expected none with"),
        ({"image_view": "six-corp"}, "did you mean 'six-crop'"),
        ({"image": "clip", "model": "x", "image_view": "mirrored"}, "`image_view`: expected whole without a backbone"),
        ({"image": "features", "features": 8, "image_view": "mirrored"}, "`image_view`: expected whole without"),
        ({"tune_image": True, "image_view": "mirrored"}, "got mirrored with a trained backbone"),
        ({"image_pooling": "gpo", "image_view": "mirrored"}, "got gpo pooling"),
        ({"image": "features"}, "`features`: expected the width"),
        ({"image": "features", "features": 0}, "`features`: expected a whole number not below 1"),
        ({"image": "features", "features": 8, "tune_image": True}, "`tune_image`: expected false"),
        ({"features": 8}, "`features`: expected none without"),
        ({"image_head": "lienar"}, "did you mean 'linear'"),
        ({"image_pooling": "avg"}, "`image_pooling`: expected one of"),
        ({"text_pooling": "last"}, "`text_pooling`: expected one of 'mean', 'cls', 'gpo'"),
        ({"text": "gru", "text_pooling": "cls"}, "`text_pooling`: expected one of 'mean', 'last', 'gpo'"),
        ({"width": 0}, "`width`: expected a whole number not below 1"),
        ({"words": 0}, "`words`: expected a whole number not below 1"),
        ({"dropout_images": 1.0}, "`dropout_images`: expected a share below 1"),
        ({"dropout_texts": -0.1}, "`dropout_texts`: expected a finite number not below 0"),
        ({"lora_rank": -1}, "`lora_rank`: expected a whole number not below 0"),
        ({"lora_rank": 4}, "`lora_rank`: expected an encoder to train"),
        ({"text": "gru", "tune_text": True, "lora_rank": 4}, "`lora_rank`: expected an encoder to train"),
        ({"tune_text": True, "lora_rank": 4, "lora_targets": ()}, "`lora_targets`: expected names"),
        ({"tune_text": True, "lora_rank": 4, "lora_alpha": 0}, "`lora_alpha`: expected a finite number above 0"),
        ({"head_weights": 3}, "`head_weights`: expected a sequence of numbers"),
        ({"heads": 2, "head_weights": ("a", "b")}, "`head_weights`: expected a finite number"),
        ({"heads": 2, "head_weights": (float("nan"), 1.0)}, "`head_weights`: expected a finite number"),
        ({"heads": 2, "head_weights": (0.0, 1.0)}, "`head_weights`: expected a finite number above 0"),
        ({"heads": 2, "head_weights": (1.0,)}, "`head_weights`: expected 2 numbers"),
        ({"lora_targets": "query"}, "`lora_targets`: expected a tuple of names"),
        ({"lora_targets": (1,)}, "`lora_targets`: expected a tuple of names"),
        ({"base_sha256": "00"}, "`base_sha256`: expected none without LoRA"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DualConfig(**settings)
