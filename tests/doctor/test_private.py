"""Reports say nothing about who and where."""

import getpass
import platform

import pytest

from bcls.cli.doctor import without_places


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/ada/x/model.bin is bad", ".../model.bin is bad"),
        ("`minilm`: expected /a/b c/d.safetensors, got /e/f", "`minilm`: expected .../d.safetensors, got .../f"),
        ("~/secret/notes.txt", ".../notes.txt"),
        (r"C:\Users\Ada Lovelace\x.npy: damaged", r"...\x.npy: damaged"),
        ("see https://example.org/a/b.html", "see https://example.org/a/b.html"),
        ("3/4 done, 10 MB/s, 2024/05/17", "3/4 done, 10 MB/s, 2024/05/17"),
        ("('/opt/data/x.zip')", "('.../x.zip')"),
        ("/single", "/single"),
        ("", ""),
    ],
)
def test_folders_are_left_out(text, left):
    assert without_places(text) == left


def test_names_of_user_and_machine(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(platform, "node", lambda: "engine.example.org")
    assert without_places("ada on engine.example.org or engine") == "USER on HOST or HOST"
    assert without_places("adapter, ada-net, engines") == "adapter, ada-net, engines"


def test_a_user_without_a_name(monkeypatch):
    def nobody():
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert without_places("x") == "x"
