"""Towers as ONNX files: what onnxruntime makes of them is what torch makes of the model."""

import json

import numpy as np
import pytest
import torch

from bcls.data.vocabulary import Vocabulary
from bcls.models.config import VseppConfig, build
from bcls.models.export import TOLERANCE, export_onnx
from bcls.models.padded import Padded
from tests.export.checking import check, run_readme
from tests.models.dual import made

VOCABULARY = Vocabulary.build(made.TEXTS, threshold=1)
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
        "config.json",
        "vocab.json",
        "README.md",
    }
    assert Vocabulary.read(out / "vocab.json") == VOCABULARY
    content = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert content["config"]["word_width"] == 4
    assert content["onnx"]["image_shape"] == ["N", 5]
    np.save(out / "features.npy", np.ones((2, 5), np.float16))
    expected = model.similarity(torch.ones(2, 5), ["a dog runs", "two people eat lunch"])
    torch.testing.assert_close(run_readme(out), expected, atol=TOLERANCE, rtol=0)


def test_regions_with_gpo(tmp_path):
    model = gru(image_pooling="gpo", text_pooling="gpo")
    exported = export_onnx(model, tmp_path / "towers", regions=True)
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
    exported = export_onnx(gru(), earlier, images=torch.randn(1, 5), texts=["a dog"])
    assert exported.image_difference <= TOLERANCE
    assert (earlier / "text.onnx").stat().st_size > 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "towers"]


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


def test_a_folder_beside_and_the_name_of_the_registry(tmp_path):
    (tmp_path / "towers.new").mkdir()
    model = build(VseppConfig(name="mine", words=20, **FEATURES))
    export_onnx(model, tmp_path / "towers")
    assert (tmp_path / "towers.new").is_dir()
    assert json.loads((tmp_path / "towers" / "config.json").read_text(encoding="utf-8"))["config"]["name"] == "vsepp"


def test_a_tower_that_disagrees_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("bcls.models.export.TOLERANCE", -1.0)
    with pytest.raises(ValueError, match=r"`model`: expected vectors that differ by -1 at most"):
        export_onnx(gru(), tmp_path / "towers")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_cross_attention_has_no_two_towers(tmp_path, name):
    model = build({"name": name, "words": 20, "features": 8, "width": 8, "similarity_width": 4, "regions": 3})
    with pytest.raises(ValueError, match="`model`: expected a model with one vector an image and one a caption"):
        export_onnx(model, tmp_path / "towers")
