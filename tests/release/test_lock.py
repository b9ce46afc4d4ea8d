"""``requirements.lock``: the packages of the extras, at the versions of ``constraints.txt``, each with its hashes."""

import platform
import re
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from scripts.lock import DEV, LOCK, ROOT, needed, pins, version_of

TEXT = LOCK.read_text(encoding="utf-8")


def test_versions_are_those_of_the_constraints():
    assert pins(TEXT) == pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))


def test_every_package_has_hashes_and_no_address():
    packages = re.findall(r"^\S+==\S+((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", TEXT, re.MULTILINE)
    assert len(packages) == len(pins(TEXT))
    assert "://" not in TEXT


def test_packages_are_those_of_the_extras():
    if (sys.version_info[:2], platform.system(), platform.machine()) != ((3, 11), "Linux", "x86_64"):
        pytest.skip("made for Python 3.11 on Linux x86-64")
    try:
        base, dev = needed("all"), needed("dev")
    except PackageNotFoundError as error:
        pytest.skip(f'needs pip install "bcls[dev]": {error.name} is missing')
    first, second = TEXT.split(DEV)
    assert set(pins(first)) == base, "run python scripts/lock.py"
    assert set(pins(second)) == dev - base, "run python scripts/lock.py"


def test_versions_in_file_names():
    assert str(version_of("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl")) == "2.13.0+cpu"
    assert str(version_of("twine-7.0.0.tar.gz")) == "7.0.0"
    assert version_of("old-1.0.win32.exe") is None
