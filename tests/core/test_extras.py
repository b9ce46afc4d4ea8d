"""Optional dependencies and devices."""

import sys

import pytest
import torch

from bcls._core.extras import MissingExtraError, check_device, require


def test_an_installed_module_is_imported():
    assert require("json", "text", "reading") is sys.modules["json"]
    assert require("os.path", "text", "reading") is sys.modules["os.path"]


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.inner.part"])
def test_the_message_names_purpose_and_extra(module):
    with pytest.raises(MissingExtraError) as caught:
        require(module, "reports", "drawing the report")
    assert str(caught.value) == 'drawing the report needs no_such_package: pip install "bcls[reports]"'
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "no_such_package"


def test_a_broken_module_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "bcls_broken_example.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        require("bcls_broken_example", "text", "reading")
    assert not isinstance(caught.value, MissingExtraError)


def test_the_cpu_is_available():
    assert check_device("cpu") == "cpu"


@pytest.mark.parametrize("name", ["cuda:99", "nonsense", "meta", "", "cpu:3", "cuda:-1"])
def test_unavailable_devices_are_rejected(name):
    with pytest.raises(ValueError, match=r"`device`: expected one that torch can use here: cpu.*; choose one of these"):
        check_device(name)


def test_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [check_device(name) for name in ("cuda", "cuda:1")] == ["cuda", "cuda:1"]
    with pytest.raises(ValueError, match="here: cpu, cuda:0, cuda:1"):
        check_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="`device`: expected one that torch can use here: cpu"):
        check_device("cuda")
