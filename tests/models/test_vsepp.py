"""VSE++: equal to its transcription, for every kind of image input, and safe at zero."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bcls.models.padded import Padded
from tests.models import made
from tests.reference import vsepp


@pytest.mark.parametrize("bidirectional", [False, True])
def test_vectors_equal_the_transcription(bidirectional):
    model = made.model("vsepp", bidirectional=bidirectional).eval()
    features = torch.randn(4, 5)
    vectors = model.encode_images(features)
    for row, vector in zip(features, vectors, strict=True):
        torch.testing.assert_close(vector, vsepp.image(row, model.fc.weight, model.fc.bias))
    texts = model.prepare_texts(made.CAPTIONS)
    ahead = dict(model.reader.ahead.named_parameters())
    back = dict(model.reader.back.named_parameters()) if bidirectional else None
    words = model.encode_texts(made.CAPTIONS)
    for numbers, length, vector in zip(texts.values, texts.lengths, words, strict=True):
        expected = vsepp.caption(numbers[:length], model.reader.embed.weight, ahead, back)
        torch.testing.assert_close(vector, expected)
    torch.testing.assert_close(model.similarity(features, made.CAPTIONS), vectors @ words.T)
    with torch.no_grad():
        scores = model.scores(*model(model.prepare_images(features), texts))
    torch.testing.assert_close(scores, vectors @ words.T)


def test_regions_by_their_mean_or_their_largest():
    features = made.regions(number=6, lengths=[6, 2, 1, 4])
    mean, largest = made.model("vsepp").eval(), made.model("vsepp", pooling="max").eval()
    for row, length in enumerate(features.lengths.tolist()):
        real = features.values[row, :length]
        expected = vsepp.image(real.mean(0), mean.fc.weight, mean.fc.bias)
        torch.testing.assert_close(mean.encode_images(features)[row], expected)
        peak = (real @ largest.fc.weight.T + largest.fc.bias).amax(0)
        torch.testing.assert_close(largest.encode_images(features)[row], peak / peak.norm())


@pytest.mark.parametrize("name", ["vsepp", "saf"])
def test_regions_as_a_pair_of_tensors(name):
    model = made.model(name)
    regions = made.regions(lengths=[36, 2, 1, 4])
    pair = regions.values, regions.lengths
    assert torch.equal(model.encode_images(pair), model.encode_images(regions))
    assert torch.equal(model.prepare_images(pair).lengths, regions.lengths)
    assert torch.equal(model.similarity(pair, made.CAPTIONS), model.similarity(regions, made.CAPTIONS))


def test_start_weights_are_the_authors():
    torch.manual_seed(0)
    from bcls.models.config import build

    model = build({"name": "vsepp", "words": 50, "features": 30, "width": 20})
    bound = (6 / 50) ** 0.5
    assert 0.9 * bound < model.fc.weight.abs().max() <= bound
    assert not model.fc.bias.any()
    assert 0.09 < model.reader.embed.weight.abs().max() <= 0.1


@pytest.mark.parametrize(("name", "count"), [("vsepp", 8_715_948), ("sgr", 18_109_175), ("saf", 17_517_306)])
def test_parameter_counts_are_the_authors(name, count):
    from bcls.models.config import build

    with torch.device("meta"):
        model = build({"name": name, "words": 8481})
    assert sum(one.numel() for one in model.parameters()) == count


@pytest.mark.parametrize("kind", [np.asarray, lambda values: values.half(), lambda values: values.T.contiguous().T])
def test_kinds_of_features(kind):
    model = made.model("vsepp")
    features = torch.randn(3, 5)
    torch.testing.assert_close(model.encode_images(kind(features)), model.encode_images(features), rtol=0, atol=2e-3)


def test_zero_features_give_no_nan():
    model = made.model("vsepp").train()
    torch.nn.init.zeros_(model.fc.bias)
    features = torch.zeros(2, 5, requires_grad=True)
    scores = model.scores(*model(Padded(features), model.prepare_texts(made.CAPTIONS)))
    scores.sum().backward()
    assert not scores.any()
    assert features.grad.isfinite().all()
    assert all(one.grad.isfinite().all() for one in model.parameters())


def test_dropout_in_training_only():
    model = made.model("vsepp", dropout_words=0.5, dropout_features=0.5)
    features, texts = made.regions(number=3), model.prepare_texts(made.CAPTIONS)
    torch.manual_seed(0)
    for encode, batch in ((model.image_codes, features), (model.text_codes, texts)):
        assert not torch.equal(encode(batch).values, encode(batch).values)
    assert torch.equal(model.encode_texts(made.CAPTIONS), model.encode_texts(made.CAPTIONS))
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
        made.model("vsepp").encode_images(images)


def test_nothing_gives_nothing():
    model = made.model("vsepp")
    assert model.similarity([], []).shape == model.similarity((), ()).shape == (0, 0)
    assert model.similarity(torch.zeros(0, 5), made.CAPTIONS).shape == (0, 3)
