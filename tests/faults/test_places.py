"""Read-only folders: the error names the file, and no files are left."""

import shutil
import tempfile
from pathlib import Path

import pytest

from bcls._core.locks import lock_folder
from tests.faults.faulty import as_other_user
from tests.faults.records import tried
from tests.faults.targets import MADE, REPLACED


@pytest.fixture
def public_folder():
    """A folder that every user can read, unlike those of pytest."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    place.chmod(0o755)
    shutil.rmtree(place)


@pytest.mark.parametrize("kind", [*REPLACED, *MADE], ids=lambda kind: kind.__name__)
def test_read_only_folder(public_folder, kind):
    target = kind(public_folder)
    if kind in REPLACED:
        target.write(0)
    for path in [public_folder, *public_folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(public_folder.rglob("*"))
    error = as_other_user((lambda: target.write(1)) if kind in REPLACED else target.write)
    assert error.startswith(("PermissionError: ", "OSError: ")), error
    assert str(public_folder) in error
    assert sorted(public_folder.rglob("*")) == before
    for path in [public_folder, *public_folder.rglob("*")]:
        path.chmod(0o755)
    if kind in REPLACED:
        assert target.read() == 0
    tried("read-only folder", kind.name, 1, "error with the name of the file; nothing was changed")


def test_read_only_run_folder(public_folder):
    public_folder.chmod(0o555)

    def begin():
        with lock_folder(public_folder / "run"):
            pass

    error = as_other_user(begin)
    assert error.startswith("PermissionError: ")
    assert str(public_folder / "run") in error
    tried("read-only folder", "run folder", 1, "error with the name of the file; nothing was changed")
