"""Loading models from the hub and from folders."""

import pytest
import torch

from bcls.models import load
from bcls.models.loading import run_settings
from tests.models import factories

hub = pytest.importorskip("huggingface_hub", reason='needs pip install "bcls[hub]"')


def test_hub_name_is_downloaded(tmp_path, monkeypatch):
    model = factories.model("vsepp")
    model.save_pretrained(tmp_path / "snapshot")
    asked = []

    def snapshot_download(name, **_):
        asked.append(name)
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    assert torch.equal(load("somebody/dogs").fc.weight, model.fc.weight)
    assert asked == ["somebody/dogs"]
    with pytest.raises(ValueError, match="expected 'photo'"):
        load("../dogs")
    assert asked == ["somebody/dogs"]


def test_hub_errors_are_reported(monkeypatch, tmp_path):
    def snapshot_download(*_, **__):
        raise OSError("no such repository\nand twenty more lines")

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"got 'somebody/dogs'; no such repository$"):
        load("somebody/dogs")


def test_folder_takes_precedence_over_the_hub(tmp_path, monkeypatch):
    model = factories.model("vsepp")
    model.save_pretrained(tmp_path / "somebody" / "dogs")
    monkeypatch.chdir(tmp_path)
    assert torch.equal(load("somebody/dogs").fc.weight, model.fc.weight)


def test_settings_of_a_run_are_found_from_the_run_and_from_its_checkpoints(tmp_path):
    (tmp_path / "config.yaml").write_text("features: lite0\n")
    assert run_settings(tmp_path) == run_settings(tmp_path / "checkpoints" / "best") == {"features": "lite0"}
    assert run_settings(tmp_path / "model") == {}


def test_unknown_home_folder_raises():
    with pytest.raises(ValueError, match="expected 'photo', 'photo-fast', the folder of a model"):
        load("~nosuchuser/x")
