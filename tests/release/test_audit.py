"""``scripts/audit.py``: files that were changed after installation are found; the bill of materials is CycloneDX."""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from scripts.audit import changed_files


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package of one module."""
    (tmp_path / "one_module.py").write_text("x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    info = tmp_path / "one_module-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: one_module\nVersion: 1.0\nLicense: MIT\n")
    (info / "RECORD").write_text(f"one_module.py,sha256={digest},6\none_module-1.0.dist-info/RECORD,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_unchanged_package_has_no_findings(package):
    assert list(changed_files(metadata.distribution("one_module"))) == []
    assert list(changed_files(metadata.distribution("pyyaml"))) == []


def test_changed_and_missing_files_are_found(package):
    (package / "one_module.py").write_text("x = 2\n")
    assert list(changed_files(metadata.distribution("one_module"))) == ["one_module.py was changed after installation"]
    (package / "one_module.py").unlink()
    assert list(changed_files(metadata.distribution("one_module"))) == ["one_module.py is missing"]


@pytest.mark.slow
def test_bill_of_materials_lists_the_installed_packages(tmp_path):
    program = shutil.which("cyclonedx-py", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip('needs pip install "bcls[dev]"')
    subprocess.run([program, "environment", "-o", str(tmp_path / "sbom.json"), sys.executable], check=True)
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    versions = {part["name"].lower(): part["version"] for part in bill["components"]}
    assert versions["numpy"] == metadata.version("numpy")
