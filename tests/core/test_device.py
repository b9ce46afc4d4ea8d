"""Devices of this machine, and those that it does not have."""

import pytest
import torch

from bcls._core.extras import check_device


def test_the_processor():
    assert check_device("cpu") == "cpu"


@pytest.mark.parametrize("name", ["cuda:99", "nonsense", "meta", "", "cpu:3", "cuda:-1"])
def test_what_is_not_here(name):
    with pytest.raises(ValueError, match=r"`device`: expected one that torch can use here: cpu.*; choose one of these"):
        check_device(name)


def test_graphics_cards(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [check_device(name) for name in ("cuda", "cuda:1")] == ["cuda", "cuda:1"]
    with pytest.raises(ValueError, match="here: cpu, cuda:0, cuda:1"):
        check_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="`device`: expected one that torch can use here: cpu"):
        check_device("cuda")
