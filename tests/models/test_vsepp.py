"""VSE++: equal to its transcription for every kind of image input, also with a backbone, and safe at zero."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from bcls.models import build, load
from bcls.models.base import pixel_batch
from bcls.models.layers import Padded
from tests.models import factories
from tests.reference import vsepp


@pytest.mark.parametrize("bidirectional", [False, True])
def test_vectors_equal_the_transcription(bidirectional):
    model = factories.model("vsepp", bidirectional=bidirectional).eval()
    features = torch.randn(4, 5)
    vectors = model.encode_images(features)
    for row, vector in zip(features, vectors, strict=True):
        torch.testing.assert_close(vector, vsepp.image(row, model.fc.weight, model.fc.bias))
    texts = model.prepare_texts(factories.CAPTIONS)
    ahead = dict(model.reader.ahead.named_parameters())
    back = dict(model.reader.back.named_parameters()) if bidirectional else None
    words = model.encode_texts(factories.CAPTIONS)
    for numbers, length, vector in zip(texts.values, texts.lengths, words, strict=True):
        expected = vsepp.caption(numbers[:length], model.reader.embed.weight, ahead, back)
        torch.testing.assert_close(vector, expected)
    torch.testing.assert_close(model.similarity(features, factories.CAPTIONS), vectors @ words.T)
    with torch.no_grad():
        scores = model.scores(*model(model.prepare_images(features), texts))
    torch.testing.assert_close(scores, vectors @ words.T)


def test_regions_by_their_mean_or_their_largest():
    features = factories.regions(number=6, lengths=[6, 2, 1, 4])
    mean, largest = factories.model("vsepp").eval(), factories.model("vsepp", pooling="max").eval()
    for row, length in enumerate(features.lengths.tolist()):
        real = features.values[row, :length]
        expected = vsepp.image(real.mean(0), mean.fc.weight, mean.fc.bias)
        torch.testing.assert_close(mean.encode_images(features)[row], expected)
        peak = (real @ largest.fc.weight.T + largest.fc.bias).amax(0)
        torch.testing.assert_close(largest.encode_images(features)[row], peak / peak.norm())


@pytest.mark.parametrize("name", ["vsepp", "saf"])
def test_regions_as_a_pair_of_tensors(name):
    model = factories.model(name)
    regions = factories.regions(lengths=[36, 2, 1, 4])
    pair = regions.values, regions.lengths
    assert torch.equal(model.encode_images(pair), model.encode_images(regions))
    assert torch.equal(model.prepare_images(pair).lengths, regions.lengths)
    assert torch.equal(model.similarity(pair, factories.CAPTIONS), model.similarity(regions, factories.CAPTIONS))


def test_start_weights_are_the_authors():
    torch.manual_seed(0)
    from bcls.models import build

    model = build({"name": "vsepp", "words": 50, "features": 30, "width": 20})
    bound = (6 / 50) ** 0.5
    assert 0.9 * bound < model.fc.weight.abs().max() <= bound
    assert not model.fc.bias.any()
    assert 0.09 < model.reader.embed.weight.abs().max() <= 0.1


@pytest.mark.parametrize(("name", "count"), [("vsepp", 8_715_948), ("sgr", 18_109_175), ("saf", 17_517_306)])
def test_parameter_counts_are_the_authors(name, count):
    from bcls.models import build

    with torch.device("meta"):
        model = build({"name": name, "words": 8481})
    assert sum(one.numel() for one in model.parameters()) == count


@pytest.mark.parametrize("kind", [np.asarray, lambda values: values.half(), lambda values: values.T.contiguous().T])
def test_kinds_of_features(kind):
    model = factories.model("vsepp")
    features = torch.randn(3, 5)
    torch.testing.assert_close(model.encode_images(kind(features)), model.encode_images(features), rtol=0, atol=2e-3)


def test_zero_features_give_no_nan():
    model = factories.model("vsepp").train()
    torch.nn.init.zeros_(model.fc.bias)
    features = torch.zeros(2, 5, requires_grad=True)
    scores = model.scores(*model(Padded(features), model.prepare_texts(factories.CAPTIONS)))
    scores.sum().backward()
    assert not scores.any()
    assert features.grad.isfinite().all()
    assert all(one.grad.isfinite().all() for one in model.parameters())


def test_dropout_in_training_only():
    model = factories.model("vsepp", dropout_words=0.5, dropout_features=0.5)
    features, texts = factories.regions(number=3), model.prepare_texts(factories.CAPTIONS)
    torch.manual_seed(0)
    for encode, batch in ((model.image_codes, features), (model.text_codes, texts)):
        assert not torch.equal(encode(batch).values, encode(batch).values)
    assert torch.equal(model.encode_texts(factories.CAPTIONS), model.encode_texts(factories.CAPTIONS))
    assert model.training


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 7), r"width 5"),
        (torch.zeros(5), r"\(N, 5\)"),
        ([Image.new("RGB", (4, 4))], "takes features"),
        (torch.full((2, 5), torch.nan), "row 0"),
        (Padded(torch.zeros(2, 3, 5), torch.tensor([4, 1])), "from 1 to 3, got 4"),
        (Padded(torch.zeros(2, 3, 5), torch.tensor([0, 1])), "at least one region"),
        (Padded(torch.zeros(2, 5), torch.tensor([1, 1])), r"lengths \(N,\)"),
        (Padded(torch.zeros(2, 3, 5), [3, 3]), r"lengths \(N,\).* got list"),
        (np.array(["a.jpg"]), "got ndarray; this model takes features"),
        (Path("a.jpg"), "takes features"),
        (Image.new("RGB", (4, 4)), "takes features"),
        (None, "got NoneType; this model takes features"),
    ],
)
def test_wrong_images(images, message):
    with pytest.raises(ValueError, match=message):
        factories.model("vsepp").encode_images(images)


def test_empty_inputs_give_empty_vectors():
    model = factories.model("vsepp")
    assert model.similarity([], []).shape == model.similarity((), ()).shape == (0, 0)
    assert model.similarity(torch.zeros(0, 5), factories.CAPTIONS).shape == (0, 3)


pytest.importorskip("efficientnet_lite_pytorch", reason='needs pip install "bcls[photos]"')
IMAGES = [Image.linear_gradient("L").convert("RGB"), Image.new("RGB", (30, 60), "red")]


def make(**settings):
    torch.manual_seed(0)
    config = {"name": "vsepp", "backbone": "efficientnet-lite0", "width": 6, "word_width": 4, **settings}
    return build(config, vocabulary=factories.VOCABULARY)


def test_frozen_backbone(tmp_path):
    model = make()
    assert model.config.features == 1280
    assert not model.backbone.training
    assert list(model.parameter_groups()) == ["all"]
    IMAGES[0].save(tmp_path / "a.png")
    vectors = model.encode_images([tmp_path / "a.png", IMAGES[1]])
    torch.testing.assert_close(vectors, model.encode_images(IMAGES))
    with torch.no_grad():
        pooled = model.backbone(model.prepare_images(IMAGES).values).mean((2, 3))
        expected = torch.nn.functional.normalize(model.fc(torch.nn.functional.normalize(pooled)))
    torch.testing.assert_close(vectors, expected)
    model.image_codes(model.prepare_images(IMAGES)).values[:, 0].sum().backward()
    assert all(one.grad is None for one in model.backbone.parameters())
    assert model.fc.weight.grad is not None
    model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").stat().st_size < 100_000
    torch.testing.assert_close(load(tmp_path / "model").encode_images(IMAGES), vectors)


def test_trained_backbone(tmp_path):
    model = make(finetune=True)
    assert model.backbone.training
    assert list(model.parameter_groups()) == ["all", "backbone"]
    codes = model.image_codes(model.prepare_images(IMAGES))
    codes.values[:, 0].sum().backward()
    assert any(one.grad is not None and one.grad.any() for one in model.backbone.parameters())
    with torch.no_grad():
        for one in model.backbone.parameters():
            one.mul_(0.9)
    model.save_pretrained(tmp_path / "model")
    torch.testing.assert_close(load(tmp_path / "model").encode_images(IMAGES), model.encode_images(IMAGES))


def test_vectors_of_a_frozen_backbone_replace_images():
    model = make(dropout_features=0.3).train()
    vectors = model.image_vectors_of(IMAGES)
    assert vectors.values.shape == (2, 1280)
    assert model.training
    assert not model.backbone.training
    torch.testing.assert_close(model.encode_images(vectors), model.encode_images(IMAGES))
    model.image_codes(model.prepare_images(vectors)).values[:, 0].sum().backward()
    assert model.fc.weight.grad.any()
    with pytest.raises(ValueError, match="1280"):
        model.prepare_images(torch.zeros(2, 7))
    with pytest.raises(ValueError, match="frozen backbone"):
        make(finetune=True).image_vectors_of(IMAGES)
    with pytest.raises(ValueError, match="reads images"):
        make(finetune=True).prepare_images(vectors)


def test_vectors_of_a_backbone_on_a_gpu_come_to_the_cpu(monkeypatch):
    class OnGpu:
        def cpu(self):
            return torch.ones(2, 1280)

    model = make()
    monkeypatch.setattr(model, "_encode", lambda *_: OnGpu())
    assert torch.equal(model.image_vectors_of(IMAGES).values, torch.ones(2, 1280))


def test_wrong_images_of_a_backbone_raise(tmp_path):
    (tmp_path / "empty.jpg").touch()

    def prepare(_):
        return torch.zeros(3, 8, 8, dtype=torch.uint8)

    for images, message in (
        (torch.zeros(2, 1280), "reads images"),
        (Padded(torch.zeros(2, 3, 9, 9)), r"\(N, 3, 8, 8\)"),
        (IMAGES[0], r"in \[\]"),
        ("photo.jpg", r"in \[\]"),
        ([3], "paths or PIL images"),
        ([tmp_path / "none.jpg"], "none.jpg.*check the path"),
        ([tmp_path / "empty.jpg"], "an empty file"),
    ):
        with pytest.raises(ValueError, match=message):
            pixel_batch(images, prepare, 8)
    assert pixel_batch([], prepare, 8).values.shape == (0, 3, 8, 8)


def test_pil_image_gives_the_pixels_of_its_file(tmp_path):
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    grey = Image.fromarray(np.linspace(0, 65535, 96, dtype=np.uint16).reshape(8, 12))
    clear = Image.new("RGBA", (12, 8), (10, 20, 30, 60))
    for picture, more in ((IMAGES[0].resize((12, 8)), {"exif": turned}), (grey, {}), (clear, {})):
        picture.save(tmp_path / "a.png", **more)
        seen = []
        pixel_batch([tmp_path / "a.png", Image.open(tmp_path / "a.png")], partial(keep, seen), 8)
        assert seen[0].mode == seen[1].mode == "RGB"
        assert seen[0].size == seen[1].size
        assert seen[0].tobytes() == seen[1].tobytes()


def keep(seen, picture):
    seen.append(picture)
    return torch.zeros(3, 8, 8, dtype=torch.uint8)


def test_pil_image_of_a_damaged_file_raises(tmp_path):
    IMAGES[0].save(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="`images`: expected a complete image"):
        pixel_batch([Image.open(tmp_path / "a.png")], lambda one: keep([], one), 8)
