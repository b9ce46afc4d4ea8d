"""Saved models: replaced as a whole, equal scores after loading, and errors for files that do not fit."""

import json
import shutil

import pytest
import torch
import yaml

from bcls.data.vocabulary import Vocabulary
from bcls.models import build, load
from bcls.models.config import SgrConfig
from bcls.models.folder import save_folder
from bcls.models.vsepp import VseppModel
from tests.models import factories


def inputs(name):
    return torch.randn(3, 5, generator=torch.Generator().manual_seed(0)) if name == "vsepp" else factories.regions()


@pytest.mark.parametrize("name", ["vsepp", "sgr", "saf", "sgraf"])
def test_loaded_model_equals_the_saved_one(name, tmp_path):
    model = factories.model(name)
    model.save_pretrained(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.config == model.config
    assert again.vocabulary == factories.VOCABULARY
    assert not again.training
    assert model.training
    images = inputs(name)
    assert torch.equal(again.similarity(images, factories.CAPTIONS), model.similarity(images, factories.CAPTIONS))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    names = ["README.md", "config.json", "model.safetensors", "vocab.json"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == names
    assert Vocabulary.read(tmp_path / "model" / "vocab.json") == factories.VOCABULARY


def test_model_without_vocabulary(tmp_path):
    model = factories.model("vsepp", vocabulary=None, words=9)
    model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model" / "vocab.json").exists()
    texts = torch.tensor([[1, 5, 2]]), torch.tensor([3])
    assert torch.equal(load(tmp_path / "model").encode_texts(texts), model.encode_texts(texts))
    assert "token ids" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")


def test_model_card_has_the_hub_header(tmp_path):
    factories.model("sgr").save_pretrained(tmp_path / "model")
    _, header, page = (tmp_path / "model" / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "bcls"
    assert yaml.safe_load(header)["tags"] == ["image-text-retrieval", "sgr"]
    plain = json.loads(page.split("```json\n")[1].split("```")[0])
    stored = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    assert stored.pop("sha256").keys() == {"model.safetensors", "vocab.json"}
    assert plain == stored


def test_saving_again_replaces_the_whole_folder(tmp_path):
    factories.model("vsepp").save_pretrained(tmp_path / "model")
    second = factories.model("vsepp", seed=9, vocabulary=None, words=9)
    second.save_pretrained(tmp_path / "model")
    names = ["README.md", "config.json", "model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == names
    assert torch.equal(load(tmp_path / "model").fc.weight, second.fc.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_other_folders_are_not_replaced(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "dog.jpg").touch()
    with pytest.raises(ValueError, match="nothing is overwritten"):
        factories.model("vsepp").save_pretrained(folder)
    with pytest.raises(ValueError, match="nothing is overwritten"):
        factories.model("vsepp").save_pretrained(folder / "dog.jpg")
    assert (folder / "dog.jpg").exists()


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": "{}"},
        {"config.json": '{"name": "my program"}', "model.safetensors": ""},
        {"config.json": '{"name": ["vsepp"]}', "model.safetensors": ""},
        {"config.json": "[]", "model.safetensors": ""},
        {"config.json": "{", "model.safetensors": ""},
        {"config.json": '{"name": "vsepp"}', "thesis.tex": "years of work"},
        {"config.json": '{"name": "vsepp"}', "model.safetensors": "", "thesis.tex": "years of work"},
    ],
)
def test_folders_with_other_files_are_not_replaced(tmp_path, files):
    (tmp_path / "mine").mkdir()
    for name, content in files.items():
        (tmp_path / "mine" / name).write_text(content)
    with pytest.raises(ValueError, match="nothing is overwritten"):
        factories.model("vsepp").save_pretrained(tmp_path / "mine")
    assert {path.name: path.read_text() for path in (tmp_path / "mine").iterdir()} == files


def test_empty_folder_is_used(tmp_path):
    (tmp_path / "model").mkdir()
    factories.model("vsepp").save_pretrained(tmp_path / "model")
    assert load(tmp_path / "model").config.name == "vsepp"


def test_neighbouring_folders_are_not_touched(tmp_path):
    for name in ("model.old", "model.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").touch()
    for seed in range(2):
        factories.model("vsepp", seed=seed).save_pretrained(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.new", "model.old"]
    assert all((tmp_path / name / "thesis.tex").exists() for name in ("model.old", "model.new"))
    (tmp_path / "model").rename(tmp_path / "other.old")
    with pytest.raises(ValueError, match=r"expected .*the folder of a model"):
        load(tmp_path / "other")


def test_saved_name_is_the_registered_one(tmp_path):
    model = build(SgrConfig(name="my-sgr", words=9, **factories.CROSS))
    model.save_pretrained(tmp_path / "model")
    assert load(tmp_path / "model").config.name == "sgr"
    assert "# sgr, an image-text" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")


def test_failed_save_keeps_the_old_model(tmp_path, monkeypatch):
    first = factories.model("vsepp")
    first.save_pretrained(tmp_path / "model")
    monkeypatch.setattr("bcls.models.folder.model_card", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        factories.model("vsepp", seed=9).save_pretrained(tmp_path / "model")
    assert torch.equal(load(tmp_path / "model").fc.weight, first.fc.weight)


def test_interrupted_save_is_recovered(tmp_path):
    model = factories.model("vsepp")
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / ".model.old-bcls")
    assert torch.equal(load(tmp_path / "model").fc.weight, model.fc.weight)
    second = factories.model("vsepp", seed=9)
    second.save_pretrained(tmp_path / "model")
    assert torch.equal(load(tmp_path / "model").fc.weight, second.fc.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_run_folder_loads_best_else_last_checkpoint(tmp_path):
    last, best = factories.model("vsepp", seed=1), factories.model("vsepp", seed=2)
    save_folder(last, tmp_path / "run" / "checkpoints" / "last")
    assert torch.equal(load(tmp_path / "run").fc.weight, last.fc.weight)
    save_folder(best, tmp_path / "run" / "checkpoints" / "best")
    assert torch.equal(load(str(tmp_path / "run")).fc.weight, best.fc.weight)


def test_from_pretrained_checks_the_class(tmp_path):
    factories.model("saf").save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="expected a VseppModel, got a CrossModel"):
        VseppModel.from_pretrained(tmp_path / "model")
    factories.model("vsepp").save_pretrained(tmp_path / "model")
    assert isinstance(VseppModel.from_pretrained(tmp_path / "model"), VseppModel)


@pytest.fixture
def saved(tmp_path):
    factories.model("vsepp").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_config_with_other_sizes_raises(saved):
    plain = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    (saved / "config.json").write_text(json.dumps(plain | {"width": 7}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"config.json.*\(7, 5\) for 'fc.weight', and \(6, 5\) in model.safetensors"):
        load(saved)


GRU = {"name": "dual", "image": "features", "features": 5, "width": 6, "text": "gru", "word_width": 4, "states": 7}


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ({"name": "sgr", **factories.CROSS}, {"steps": 20_000}),
        ({"name": "sgraf", **factories.CROSS}, {"steps": 20_000}),
        ({"name": "sgraf", **factories.CROSS}, {"similarity_width": 10**13}),
        ({"name": "saf", **factories.CROSS}, {"features": 10**13}),
        (GRU, {"width": 10**13}),
        (GRU, {"features": 10**13}),
        (GRU, {"states": 10**13}),
        (GRU, {"words": 10**13}),
        (GRU, {"word_width": 10**13}),
        ({**GRU, "heads": 2}, {"heads": 6}),
    ],
)
def test_huge_sizes_raise_before_memory_is_allocated(tmp_path, monkeypatch, config, changes):
    build({**config, "words": 9}).save_pretrained(tmp_path / "model")
    load(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    monkeypatch.setattr("bcls.models.folder.build_any", lambda *_, **__: pytest.fail("memory was taken"))
    with pytest.raises(ValueError, match="the sizes of the weights"):
        load(tmp_path / "model")


def test_encoder_folder_is_ignored_by_other_models(saved):
    (saved / "encoder").mkdir()
    assert load(saved).config.name == "vsepp"


def test_weights_of_another_model_raise(saved, tmp_path):
    factories.model("saf").save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", saved / "model.safetensors")
    with pytest.raises(ValueError, match=r"another model|tensors of this model"):
        load(saved)
    shutil.copy(saved / "config.json", tmp_path / "other" / "config.json")
    with pytest.raises(ValueError, match=r"tensors of this model|another model"):
        load(tmp_path / "other")


def forget_hashes(folder):
    """Remove the checksums, as in folders of earlier versions."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["sha256"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.json"])
def test_a_flipped_bit_raises(saved, name):
    content = bytearray((saved / name).read_bytes())
    content[-9] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}`: expected a file with sha256 .*copy the whole folder again"):
        load(saved)


def test_another_vocabulary_raises(saved):
    forget_hashes(saved)
    Vocabulary.build(["one two"], threshold=1).write(saved / "vocab.json")
    with pytest.raises(ValueError, match=f"expected 6, the size of `vocabulary`, got {len(factories.VOCABULARY)}"):
        load(saved)


@pytest.mark.parametrize("left", [0, 4, 60, -1])
def test_truncated_weights_raise(saved, left):
    forget_hashes(saved)
    whole = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(whole[:left])
    with pytest.raises(ValueError, match="a complete safetensors file"):
        load(saved)


def test_missing_files_raise(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="no such file"):
        load(saved)
    (saved / "config.json").unlink()
    with pytest.raises(ValueError, match=r"without config\.json"):
        load(saved)
    with pytest.raises(ValueError, match="no such folder"):
        VseppModel.from_pretrained(saved / "nothing")


@pytest.mark.parametrize("text", ["[]", "{", '{"name": "vsepp", "widht": 3}'])
def test_damaged_config_raises(saved, text):
    (saved / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"model/config\.json"):
        load(saved)


def test_unknown_names_raise(tmp_path):
    for name in ("no such model", "", tmp_path / "nothing"):
        with pytest.raises(ValueError, match=r"`model`: expected|saved model"):
            load(name)
    (tmp_path / "model.pth.tar").touch()
    with pytest.raises(ValueError, match="import_checkpoint"):
        load(tmp_path / "model.pth.tar")
