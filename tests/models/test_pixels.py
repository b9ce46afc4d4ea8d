"""VSE++ from pixels, with the packaged backbone: frozen or trained, saved without what the package has."""

from functools import partial

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from bcls.models.base import pixel_batch
from bcls.models.config import build
from bcls.models.folder import load
from bcls.models.padded import Padded
from tests.models import made

pytest.importorskip("efficientnet_lite_pytorch", reason='needs pip install "bcls[photos]"')
PICTURES = [Image.linear_gradient("L").convert("RGB"), Image.new("RGB", (30, 60), "red")]


def make(**settings):
    torch.manual_seed(0)
    config = {"name": "vsepp", "backbone": "efficientnet-lite0", "width": 6, "word_width": 4, **settings}
    return build(config, vocabulary=made.VOCABULARY)


def test_frozen(tmp_path):
    model = make()
    assert model.config.features == 1280
    assert not model.backbone.training
    assert list(model.parameter_groups()) == ["all"]
    PICTURES[0].save(tmp_path / "a.png")
    vectors = model.encode_images([tmp_path / "a.png", PICTURES[1]])
    torch.testing.assert_close(vectors, model.encode_images(PICTURES))
    with torch.no_grad():
        pooled = model.backbone(model.prepare_images(PICTURES).values).mean((2, 3))
        expected = torch.nn.functional.normalize(model.fc(torch.nn.functional.normalize(pooled)))
    torch.testing.assert_close(vectors, expected)
    model.image_codes(model.prepare_images(PICTURES)).values[:, 0].sum().backward()
    assert all(one.grad is None for one in model.backbone.parameters())
    assert model.fc.weight.grad is not None
    model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").stat().st_size < 100_000
    torch.testing.assert_close(load(tmp_path / "model").encode_images(PICTURES), vectors)


def test_trained(tmp_path):
    model = make(finetune=True)
    assert model.backbone.training
    assert list(model.parameter_groups()) == ["all", "backbone"]
    codes = model.image_codes(model.prepare_images(PICTURES))
    codes.values[:, 0].sum().backward()
    assert any(one.grad is not None and one.grad.any() for one in model.backbone.parameters())
    with torch.no_grad():
        for one in model.backbone.parameters():
            one.mul_(0.9)
    model.save_pretrained(tmp_path / "model")
    torch.testing.assert_close(load(tmp_path / "model").encode_images(PICTURES), model.encode_images(PICTURES))


def test_vectors_of_a_frozen_backbone_stand_in_for_pictures():
    model = make(dropout_features=0.3).train()
    vectors = model.image_vectors_of(PICTURES)
    assert vectors.values.shape == (2, 1280)
    assert model.training
    assert not model.backbone.training
    torch.testing.assert_close(model.encode_images(vectors), model.encode_images(PICTURES))
    model.image_codes(model.prepare_images(vectors)).values[:, 0].sum().backward()
    assert model.fc.weight.grad.any()
    with pytest.raises(ValueError, match="1280"):
        model.prepare_images(torch.zeros(2, 7))
    with pytest.raises(ValueError, match="frozen backbone"):
        make(finetune=True).image_vectors_of(PICTURES)
    with pytest.raises(ValueError, match="sees pixels"):
        make(finetune=True).prepare_images(vectors)


def test_vectors_of_a_backbone_on_a_gpu_come_to_the_cpu(monkeypatch):
    class OnGpu:
        def cpu(self):
            return torch.ones(2, 1280)

    model = make()
    monkeypatch.setattr(model, "_in_batches", lambda *_: OnGpu())
    assert torch.equal(model.image_vectors_of(PICTURES).values, torch.ones(2, 1280))


def test_wrong_pictures(tmp_path):
    (tmp_path / "empty.jpg").touch()

    def prepare(_):
        return torch.zeros(3, 8, 8, dtype=torch.uint8)

    for images, message in (
        (torch.zeros(2, 1280), "sees pixels"),
        (Padded(torch.zeros(2, 3, 9, 9)), r"\(N, 3, 8, 8\)"),
        (PICTURES[0], r"in \[\]"),
        ("photo.jpg", r"in \[\]"),
        ([3], "paths or PIL images"),
        ([tmp_path / "none.jpg"], "none.jpg.*check the path"),
        ([tmp_path / "empty.jpg"], "an empty file"),
    ):
        with pytest.raises(ValueError, match=message):
            pixel_batch(images, prepare, 8)
    assert pixel_batch([], prepare, 8).values.shape == (0, 3, 8, 8)


def test_an_opened_picture_is_the_one_in_its_file(tmp_path):
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    grey = Image.fromarray(np.linspace(0, 65535, 96, dtype=np.uint16).reshape(8, 12))
    clear = Image.new("RGBA", (12, 8), (10, 20, 30, 60))
    for picture, more in ((PICTURES[0].resize((12, 8)), {"exif": turned}), (grey, {}), (clear, {})):
        picture.save(tmp_path / "a.png", **more)
        seen = []
        pixel_batch([tmp_path / "a.png", Image.open(tmp_path / "a.png")], partial(keep, seen), 8)
        assert seen[0].mode == seen[1].mode == "RGB"
        assert seen[0].size == seen[1].size
        assert seen[0].tobytes() == seen[1].tobytes()


def keep(seen, picture):
    seen.append(picture)
    return torch.zeros(3, 8, 8, dtype=torch.uint8)


def test_an_opened_picture_whose_file_is_damaged(tmp_path):
    PICTURES[0].save(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="`images`: expected a complete image"):
        pixel_batch([Image.open(tmp_path / "a.png")], lambda one: keep([], one), 8)
