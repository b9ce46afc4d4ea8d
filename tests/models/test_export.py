"""ONNX export: onnxruntime gives the vectors of torch, and the README explains the inputs."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import ExifTags, Image
from safetensors.numpy import load_file, save_file

from bcls.data.vocabulary import Vocabulary
from bcls.models import build, load
from bcls.models.config import VseppConfig
from bcls.models.export import (
    HALF_TOLERANCE,
    INT8_TOLERANCE,
    TOLERANCE,
    _run_tower,
    _write_tower,
    export_onnx,
    trained_features,
)
from bcls.models.layers import Padded
from bcls.models.light import LightModel
from bcls.models.onnx_weights import move_weights
from tests.models import factories

VOCABULARY = Vocabulary.build(factories.TEXTS, threshold=1)
FEATURES = {"features": 5, "width": 6, "word_width": 4}


def gru(**settings):
    torch.manual_seed(0)
    config = {"name": "dual", "image": "features", **FEATURES, "text": "gru", "states": 7, **settings}
    return build(config, vocabulary=VOCABULARY)


def test_vsepp_with_vectors(tmp_path):
    torch.manual_seed(0)
    model = build({"name": "vsepp", **FEATURES, "bidirectional": True}, vocabulary=VOCABULARY)
    model.train()
    out = tmp_path / "towers"
    exported = export_onnx(model, out)
    assert model.training
    assert (exported.model, exported.width, exported.images) == ("vsepp", 6, "vectors")
    check(model, out, exported, [torch.randn(7, 5), torch.randn(1, 5)])
    assert {path.name for path in out.iterdir()} == {
        "image.onnx",
        "text.onnx",
        "model.safetensors",
        "config.json",
        "vocab.json",
        "README.md",
    }
    assert Vocabulary.read(out / "vocab.json") == VOCABULARY
    content = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert content["word_width"] == 4
    assert content["onnx"]["image_shape"] == ["N", 5]
    words = readme(out)
    assert "Use the features with which the model was trained" in words
    assert "one vector of 5 values" in words
    assert "Convert the caption to lower case" in words
    assert "There is no length limit" in words
    np.save(out / "features.npy", np.ones((2, 5), np.float16))
    expected = model.similarity(torch.ones(2, 5), ["a dog runs", "two people eat lunch"])
    torch.testing.assert_close(run_readme(out), expected, atol=TOLERANCE, rtol=0)


def test_regions_with_gpo(tmp_path):
    model = gru(image_pooling="gpo", text_pooling="gpo")
    exported = export_onnx(
        model, tmp_path / "towers", regions=True, precision="float32", features="crops of the dataset flickr8k"
    )
    words = readme(tmp_path / "towers")
    assert "trained with the features crops of the dataset flickr8k" in words
    assert "`lengths` has the number of real regions" in words
    assert exported.image_shape == ("N", "R", 5)
    padded = Padded(torch.randn(2, 9, 5), torch.tensor([3, 9]))
    check(model, tmp_path / "towers", exported, [Padded(torch.randn(3, 4, 5), torch.tensor([4, 4, 4])), padded])
    np.save(tmp_path / "towers" / "features.npy", np.arange(30, dtype=np.float32).reshape(2, 3, 5))
    assert run_readme(tmp_path / "towers").shape == (2, 2)


def test_an_earlier_export_is_replaced_and_nothing_else(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep", encoding="utf-8")
    with pytest.raises(ValueError, match="`out`: expected a new or empty folder, or an earlier export"):
        export_onnx(gru(), tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text(encoding="utf-8") == "keep"
    earlier = tmp_path / "towers"
    earlier.mkdir()
    for name, content in {"text.onnx": "old", "image.onnx": "old", "config.json": '{"onnx": {}}'}.items():
        (earlier / name).write_text(content, encoding="utf-8")
    (tmp_path / "towers.new").mkdir()
    model = build(VseppConfig(name="mine", **FEATURES), vocabulary=VOCABULARY)
    exported = export_onnx(model, earlier, images=torch.randn(1, 5), texts=["a dog"])
    assert exported.image_difference <= TOLERANCE
    assert (earlier / "text.onnx").stat().st_size > 100
    assert json.loads((earlier / "config.json").read_text(encoding="utf-8"))["name"] == "vsepp"  # as in the registry
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "towers", "towers.new"]


@pytest.mark.parametrize(
    "files",
    [
        {"text.onnx": "mine"},
        {"text.onnx": "mine", "image.onnx": "mine", "config.json": "{}"},
        {"text.onnx": "mine", "image.onnx": "mine", "config.json": "{"},
        {"text.onnx": "old", "image.onnx": "old", "config.json": '{"onnx": {}}', "notes.txt": "keep"},
    ],
)
def test_folders_with_other_files_are_not_replaced(tmp_path, files):
    (tmp_path / "mine").mkdir()
    for name, content in files.items():
        (tmp_path / "mine" / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="nothing is overwritten"):
        export_onnx(gru(), tmp_path / "mine")
    assert {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "mine").iterdir()} == files


def test_tower_that_differs_from_torch_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("bcls.models.export.TOLERANCE", -1.0)
    with pytest.raises(ValueError, match=r"`model`: expected vectors that differ from torch by at most -1"):
        export_onnx(gru(), tmp_path / "towers")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_cross_attention_models_raise(tmp_path, name):
    model = build({"name": name, "words": 20, "features": 8, "width": 8, "similarity_width": 4, "regions": 3})
    with pytest.raises(ValueError, match=r"expected a vsepp or dual model, got .*; `--format folder` exports every"):
        export_onnx(model, tmp_path / "towers")


def tower(path, name):
    session = onnxruntime.InferenceSession(str(path))

    def run(items):
        given = {name: items.values.numpy()}
        if items.lengths is not None:
            given["lengths"] = items.lengths.numpy()
        return torch.from_numpy(session.run(None, given)[0])

    return run


def check(model, out, exported, images):
    """Other inputs than those that the export itself was checked with: more items, other lengths, one alone."""
    assert max(exported.image_difference, exported.text_difference) <= TOLERANCE
    image_tower, text_tower = tower(out / "image.onnx", "images"), tower(out / "text.onnx", "numbers")
    for texts in (factories.TEXTS * 3, ["a dog runs"], ["a"]):
        found = text_tower(model.prepare_texts(texts))
        torch.testing.assert_close(found, model.encode_texts(texts), atol=TOLERANCE, rtol=0)
    for some in images:
        found = image_tower(model.prepare_images(some))
        torch.testing.assert_close(found, model.encode_images(some), atol=TOLERANCE, rtol=0)


def readme(out):
    """The words of the README on one line."""
    return " ".join((out / "README.md").read_text(encoding="utf-8").split())


def run_readme(out):
    """Run the README's block in the folder, where neither torch nor this package may be imported; its scores."""
    code = re.search(r"```python\n(.*?)```", (out / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    blocked = "import sys\nsys.modules['torch'] = sys.modules['bcls'] = None\n"
    subprocess.run(
        [sys.executable, "-c", f"{blocked}{code}\nnp.save('scores.npy', scores)"], cwd=out, check=True, timeout=120
    )
    return torch.from_numpy(np.load(out / "scores.npy"))


@pytest.mark.parametrize("kind", ["clip", pytest.param("siglip", marks=pytest.mark.slow)])
def test_two_towers_of_one_checkpoint(tmp_path, kind):
    folder = getattr(factories, kind)(tmp_path / "checkpoint")
    model = build({"name": "dual", "image": "clip", "model": str(folder)})
    out = tmp_path / "towers"
    exported = export_onnx(model, out, precision="float32")
    pictures = [factories.image(50, 40, seed=3), factories.image(33, 80, seed=4)]
    check(model, out, exported, [pictures * 2, pictures[:1]])
    words = readme(out)
    assert "The order of the channels is red, green, blue" in words
    assert "bicubic with antialiasing" in words
    assert "Captions are truncated to 12 tokens" in words
    if kind == "clip":
        assert "shorter side has 32 pixels" in words
        assert "Cut out the center of 32 x 32 pixels" in words
    else:
        assert "Resize to 32 x 32 pixels" in words
        assert "Cut out" not in words
    # A photo with an EXIF orientation, and one with transparency.
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    pictures[0].save(out / "a.jpg", exif=turned)
    pictures[1].putalpha(Image.linear_gradient("L").resize(pictures[1].size))
    pictures[1].save(out / "b.jpg", format="PNG")
    expected = model.similarity([out / "a.jpg", out / "b.jpg"], ["a dog runs", "two people eat lunch"])
    torch.testing.assert_close(run_readme(out), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["whole", "six-crop"])
def test_backbone_with_one_or_several_crops(tmp_path, view):
    sides = {"image": str(factories.vit(tmp_path / "vit")), "text": str(factories.bert(tmp_path / "bert"))}
    model = build({"name": "dual", **sides, "width": 6, "image_view": view})
    exported = export_onnx(model, tmp_path / "towers", precision="float32")
    pictures = [factories.image(50, 40, seed=3), factories.image(33, 80, seed=4)]
    check(model, tmp_path / "towers", exported, [pictures * 2, pictures[:1]])


def test_regions_of_an_image_model_raise(tmp_path):
    model = build({"name": "dual", "image": "clip", "model": str(factories.clip(tmp_path / "checkpoint"))})
    with pytest.raises(ValueError, match="`regions`: expected a model that takes features"):
        export_onnx(model, tmp_path / "towers", regions=True)


@pytest.mark.slow
def test_packaged_encoders(tmp_path):
    model = build({"name": "dual", "image": "efficientnet-lite0", "width": 16})
    out = tmp_path / "towers"
    exported = export_onnx(model, out, precision="float32")
    pictures = [factories.image(300, 200, seed=3), factories.image(120, 180, seed=4)]
    check(model, out, exported, [pictures, pictures[:1]])
    for name, picture in zip(("a.jpg", "b.jpg"), pictures, strict=True):
        picture.save(out / name, format="PNG")
    expected = model.similarity(pictures, ["a dog runs", "two people eat lunch"])
    torch.testing.assert_close(run_readme(out), expected, atol=TOLERANCE, rtol=0)


def test_features_of_a_run_are_read_from_its_config(tmp_path):
    assert trained_features("photo") is None
    (tmp_path / "config.yaml").write_text("features: lite2\ndata: /data/flickr8k\n", encoding="utf-8")
    assert trained_features(tmp_path) == "lite2 of the dataset flickr8k"
    (tmp_path / "config.yaml").write_text(f"features: lite2\ndata: {tmp_path / 'mine'}\n", encoding="utf-8")
    made = tmp_path / "mine" / "features" / "lite2" / "manifest.json"
    made.parent.mkdir(parents=True)
    settings = {"backbone": "efficientnet-lite2", "side": 260, "view": "whole", "regions": "global", "mean": [127.0]}
    made.write_text(json.dumps({"settings": settings}), encoding="utf-8")
    expected = "lite2 of the dataset mine (backbone efficientnet-lite2, side 260, view whole, regions global)"
    assert trained_features(tmp_path) == expected
    (tmp_path / "config.yaml").write_text("features: null\n", encoding="utf-8")
    assert trained_features(tmp_path) is None


def test_float16_weights_are_stored_once_and_shared_with_torch(tmp_path):
    sides = {"image": str(factories.vit(tmp_path / "vit")), "text": str(factories.bert(tmp_path / "bert"))}
    model = build(
        {"name": "dual", **sides, "width": 64, "text_head": "mlp", "tune_text": True, "image_view": "six-crop"}
    )
    out = tmp_path / "towers"
    exported = export_onnx(model, out)
    assert exported.precision == "float16"
    again = load(out)
    pictures = [factories.image(50, 40, seed=3)]
    light = LightModel(out)
    for texts in (["a dog runs"], factories.TEXTS):
        for other in (model, again):
            assert (light.encode_texts(texts) * other.encode_texts(texts).numpy()).sum(1).min() > 1 - HALF_TOLERANCE
    assert (light.encode_images(pictures) * model.encode_images(pictures).numpy()).sum(1).min() > 1 - HALF_TOLERANCE
    graph = onnx.load(str(out / "text.onnx"), load_external_data=False).graph
    places = [{one.key: one.value for one in tensor.external_data} for tensor in graph.initializer]
    assert {place["location"] for place in places if place} == {"model.safetensors"}
    assert not (out / "text.safetensors").exists()


def test_large_tables_of_embeddings_are_int8(tmp_path):
    torch.manual_seed(0)
    model = build({"name": "vsepp", "words": 9000, **FEATURES}).eval()
    out = tmp_path / "towers"
    export_onnx(model, out)
    # The table belongs to the trained model, so it is shared in half precision.
    assert not (out / "text.safetensors").exists()
    (out / "model.safetensors").unlink()
    np_file = {"other": np.zeros((1, 1), np.float16)}
    save_file(np_file, out / "model.safetensors")
    path = tmp_path / "text.onnx"
    shutil.copy(out / "model.safetensors", tmp_path / "model.safetensors")
    _write_tower(path, model, "text", model.prepare_texts((torch.tensor([[8999, 5]]), torch.tensor([2]))), "numbers")
    move_weights(path, tmp_path / "text.safetensors", half=True)
    stored = load_file(tmp_path / "text.safetensors")
    assert {str(values.dtype) for name, values in stored.items() if name.endswith(".int8")} == {"int8"}
    given = Padded(torch.tensor([[8999, 5, 17]]), torch.tensor([3]))
    vectors = _run_tower(path, given, "numbers")
    assert float((vectors * model.encode_texts(given)).sum()) > 1 - HALF_TOLERANCE


@pytest.mark.parametrize("tune", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_int8_layers_of_the_text_encoder(tmp_path, tune):
    bert = str(factories.bert(tmp_path / "bert", width=64))
    model = build({"name": "dual", "image": "features", "features": 5, "text": bert, "width": 64, "tune_text": tune})
    exported = export_onnx(model, tmp_path / "towers", precision="int8")
    assert (exported.precision, exported.tolerance) == ("int8", INT8_TOLERANCE)
    light, texts = LightModel(tmp_path / "towers"), ["a dog", *factories.TEXTS, "a dog runs " * 9]
    vectors = light.encode_texts(texts)
    assert (vectors * model.encode_texts(texts).numpy()).sum(1).min() > 1 - INT8_TOLERANCE
    # A text has the same vector in every batch.
    np.testing.assert_allclose(vectors, np.concatenate([light.encode_texts([one]) for one in texts]), atol=1e-6)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "towers" / "loaded.onnx")
    onnxruntime.InferenceSession(str(tmp_path / "towers" / "text.onnx"), options, providers=["CPUExecutionProvider"])
    graph = onnx.load(options.optimized_model_filepath, load_external_data=False).graph
    kinds = Counter(node.op_type for node in graph.node)
    # Six matrices in each layer, of which three read the same input; weights are converted while loading.
    layers = model.text.encoder.model.config.num_hidden_layers
    assert (kinds["MatMulInteger"], kinds["QuantizeLinear"]) == (6 * layers, 4 * layers)


def test_int8_needs_linear_layers(tmp_path):
    with pytest.raises(ValueError, match="`precision`: expected a text encoder with linear layers for int8"):
        export_onnx(build({"name": "vsepp", "words": 9, **FEATURES}), tmp_path / "towers", precision="int8")
    assert not (tmp_path / "towers").exists()
