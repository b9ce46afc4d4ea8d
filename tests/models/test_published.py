"""The authors' checkpoints: equal scores, and no code from a file is run."""

import argparse
import io
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from bcls.models import load
from bcls.models.published import import_checkpoint
from tests.models import factories

GOLDEN = Path(os.environ.get("BCLS_DATA", "nowhere")).parent / "golden"
needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason="needs the authors' checkpoints beside BCLS_DATA")


@needs_golden
@pytest.mark.parametrize("name", ["vsepp", "sgr", "saf"])
def test_scores_are_those_of_the_authors_code(name, tmp_path):
    model = import_checkpoint(GOLDEN / f"{name}.pth.tar")
    assert model.config.name == name
    with np.load(GOLDEN / f"{name}_io.npz") as saved:
        io = dict(saved)
    images = io["features" if name == "vsepp" else "regions"]
    texts = torch.from_numpy(io["captions"]), torch.from_numpy(io["lengths"])
    np.testing.assert_allclose(model.similarity(images, texts), io["similarity"], rtol=0, atol=1e-5)
    with torch.no_grad():
        codes = model.image_codes(model.prepare_images(images)).values
        words = model.text_codes(model.prepare_texts(texts)).values
    expected = ("image_embeddings", "text_embeddings") if name == "vsepp" else ("region_embeddings", "word_embeddings")
    np.testing.assert_allclose(codes, io[expected[0]], rtol=0, atol=1e-5)
    np.testing.assert_allclose(words, io[expected[1]], rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(load(tmp_path / "model").similarity(images, texts), model.similarity(images, texts))


def checkpoint(name="vsepp", **options):
    """What the authors' code stores, from one of our models."""
    model = factories.model(name)
    state = model.state_dict()
    images = OrderedDict((f"fc.{key}", state[f"fc.{key}"]) for key in ("weight", "bias"))
    gru = "rnn" if name == "vsepp" else "cap_rnn"
    texts = OrderedDict({"embed.weight": state["reader.embed.weight"]})
    for key, value in model.reader.ahead.state_dict().items():
        texts[f"{gru}.{key}"] = value
    opt = argparse.Namespace(**{"margin": 0.2, "no_imgnorm": False, "num_layers": 1, **options})
    content = {"epoch": 3, "model": [images, texts], "best_rsum": np.float64(99.5), "opt": opt, "Eiters": 7}
    return model, content


@pytest.mark.parametrize("zipped", [True, False])
def test_zip_and_legacy_formats(tmp_path, zipped):
    model, content = checkpoint()
    torch.save(content, tmp_path / "a.pth.tar", _use_new_zipfile_serialization=zipped)
    again = import_checkpoint(tmp_path / "a.pth.tar", vocabulary=factories.VOCABULARY)
    features = torch.randn(3, 5)
    assert torch.equal(again.similarity(features, factories.CAPTIONS), model.similarity(features, factories.CAPTIONS))
    factories.VOCABULARY.write(tmp_path / "vocab.json")
    named = import_checkpoint(tmp_path / "a.pth.tar", vocabulary=tmp_path / "vocab.json")
    assert named.vocabulary == factories.VOCABULARY


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle", "in the options"])
def test_code_is_refused_and_not_run(tmp_path, kind):
    mark = tmp_path / "it ran"
    _, content = checkpoint(**({"hook": Hostile(mark)} if kind == "in the options" else {}))
    if kind != "in the options":
        content["extra"] = Hostile(mark)
    path = tmp_path / "a.pth.tar"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Hostile(mark), protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind != "legacy")
    with pytest.raises(ValueError, match=r"a call of posix\.mkdir; such a file can run code, so it was not read"):
        import_checkpoint(path)
    assert not mark.exists()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("left", [0, 1, 40, 900, -30])
def test_truncated_checkpoint_raises(tmp_path, zipped, left):
    _, content = checkpoint()
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    (tmp_path / "a.pth.tar").write_bytes(buffer.getvalue()[:left])
    with pytest.raises(ValueError, match="a complete checkpoint file"):
        import_checkpoint(tmp_path / "a.pth.tar")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"no_imgnorm": True}, "`no_imgnorm` False among its options, got True"),
        ({"measure": "order"}, "`measure` cosine"),
        ({"num_layers": 2}, "`num_layers` 1"),
    ],
)
def test_unsupported_variants_raise(tmp_path, options, message):
    torch.save(checkpoint(**options)[1], tmp_path / "a.pth.tar")
    with pytest.raises(ValueError, match=message):
        import_checkpoint(tmp_path / "a.pth.tar")


def test_other_contents_raise(tmp_path):
    path = tmp_path / "a.pth.tar"

    def refused(content, message):
        torch.save(content, path)
        with pytest.raises(ValueError, match=message):
            import_checkpoint(path)

    refused([1, 2], "a checkpoint of VSE")
    refused({"model": {"fc.weight": torch.zeros(1)}}, "a checkpoint of VSE")
    _, content = checkpoint()
    content["model"][0]["cnn.weight"] = torch.zeros(1)
    refused(content, "weights of a CNN")
    _, content = checkpoint()
    content["model"][1]["rnn.weight_ih_l1"] = torch.zeros(1)
    refused(content, "one layer")
    _, content = checkpoint()
    del content["model"][0]["fc.weight"]
    refused(content, "'fc.weight'")
    _, content = checkpoint()
    content["model"][0]["more.weight"] = torch.zeros(1)
    refused(content, "also 'more.weight'")
    _, content = checkpoint()
    del content["model"][0]["fc.bias"]
    refused(content, "'fc.bias'")
    with pytest.raises(ValueError, match="no such file"):
        import_checkpoint(tmp_path / "none.pth.tar")
    torch.save(checkpoint()[1], path)
    with pytest.raises(ValueError, match="the size of `vocabulary`"):
        import_checkpoint(path, vocabulary=type(factories.VOCABULARY).build(["one two"], threshold=1))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fc.weight", 3, "int at 'fc.weight'"),
        ("fc.bias", "text", "str at 'fc.bias'"),
        (7, torch.zeros(2), "Tensor at 7"),
        ("fc.weight", torch.zeros(4), "matrices as weights"),
        ("fc.weight", torch.zeros(1).expand(10**6, 10**6), "stored in full"),
    ],
)
def test_entries_that_are_not_weights_raise(tmp_path, name, value, message):
    _, content = checkpoint()
    content["model"][0][name] = value
    torch.save(content, tmp_path / "a.pth.tar")
    with pytest.raises(ValueError, match=message):
        import_checkpoint(tmp_path / "a.pth.tar")


def test_messages_name_the_file(tmp_path):
    _, content = checkpoint()
    del content["model"][1]["rnn.bias_hh_l0"]
    torch.save(content, tmp_path / "a.pth.tar")
    with pytest.raises(ValueError, match=r"a\.pth\.tar: `state`: expected a tensor"):
        import_checkpoint(tmp_path / "a.pth.tar")


def test_option_that_is_a_tensor_raises(tmp_path):
    _, content = checkpoint(no_imgnorm=torch.zeros(3))
    torch.save(content, tmp_path / "a.pth.tar")
    with pytest.raises(ValueError, match="`no_imgnorm` False among its options"):
        import_checkpoint(tmp_path / "a.pth.tar")
