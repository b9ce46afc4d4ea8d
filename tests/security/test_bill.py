"""The bill of materials: its contents, and the detection of changed files."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from scripts.sbom import bill, differences

SOME = ("pyyaml", "safetensors", "packaging")


def test_bill_contains_installed_packages():
    made = bill()
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.5")
    names = {part["name"] for part in made["components"]}
    assert {"torch", "numpy", "pillow", "safetensors", "pyyaml"} <= names
    for part in made["components"]:
        assert part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}"
    numpy = next(part for part in made["components"] if part["name"] == "numpy")
    assert numpy["version"] == metadata.version("numpy")
    assert len(numpy["hashes"][0]["content"]) == 64


def test_unchanged_installation_matches_its_bill():
    assert list(differences(bill(SOME))) == []


def test_other_versions_and_hashes_are_reported():
    kept = bill(SOME)
    kept["components"][0]["version"] = "0"
    kept["components"][1]["hashes"][0]["content"] = "0" * 64
    kept["components"].append({"name": "no-such-package", "version": "1"})
    told = list(differences(kept))
    assert len(told) == 3
    assert "0 in the bill" in told[0]
    assert "another package of the same version" in told[1]
    assert told[2] == "no-such-package 1: not installed"


@pytest.fixture
def package(tmp_path):
    """An installed package of one module, where Python finds it."""
    import base64
    import hashlib

    (tmp_path / "made_up.py").write_text("x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    place = tmp_path / "made_up-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: made_up\nVersion: 1.0\nLicense: MIT\n")
    (place / "RECORD").write_text(f"made_up.py,sha256={digest},6\nmade_up-1.0.dist-info/RECORD,,\n")
    return tmp_path


def test_changed_and_missing_files_are_reported(package, monkeypatch):
    monkeypatch.syspath_prepend(str(package))
    kept = bill(["made_up"])
    assert list(differences(kept)) == []
    (package / "made_up.py").write_text("x = 2\n")
    assert list(differences(kept)) == ["made-up: made_up.py was changed after it was installed"]
    (package / "made_up.py").unlink()
    assert list(differences(kept)) == ["made-up: made_up.py (gone) was changed after it was installed"]


def test_the_command(tmp_path):
    script = Path(__file__).parents[2] / "scripts" / "sbom.py"
    subprocess.run([sys.executable, str(script), str(tmp_path / "sbom.json")], check=True)
    kept = json.loads((tmp_path / "sbom.json").read_text())
    kept["components"] = [part for part in kept["components"] if part["name"] == "pyyaml"]
    (tmp_path / "sbom.json").write_text(json.dumps(kept))
    assert (
        subprocess.run([sys.executable, str(script), "--check", str(tmp_path / "sbom.json")], check=False).returncode
        == 0
    )
