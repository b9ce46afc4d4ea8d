"""Folders that cannot be written: an error that names the file, and nothing is left behind."""

import shutil
import tempfile
from pathlib import Path

import pytest

from bcls.training.run_folder import locked
from tests.faults.faulty import as_nobody
from tests.faults.records import tried
from tests.faults.targets import MADE, REPLACED


@pytest.fixture
def open_place():
    """A folder that every user may look into; pytest's own belong to one."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    place.chmod(0o755)
    shutil.rmtree(place)


@pytest.mark.parametrize("kind", [*REPLACED, *MADE], ids=lambda kind: kind.__name__)
def test_read_only_folder(open_place, kind):
    target = kind(open_place)
    if kind in REPLACED:
        target.write(0)
    for path in [open_place, *open_place.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(open_place.rglob("*"))
    told = as_nobody((lambda: target.write(1)) if kind in REPLACED else target.write)
    assert told.startswith(("PermissionError: ", "OSError: ")), told
    assert str(open_place) in told
    assert sorted(open_place.rglob("*")) == before
    for path in [open_place, *open_place.rglob("*")]:
        path.chmod(0o755)
    if kind in REPLACED:
        assert target.read() == 0
    tried("read-only folder", kind.name, 1, "refused with the name of the file; nothing was changed")


def test_read_only_run(open_place):
    open_place.chmod(0o555)

    def begin():
        with locked(open_place / "run"):
            pass

    told = as_nobody(begin)
    assert told.startswith("PermissionError: ")
    assert str(open_place / "run") in told
    tried("read-only folder", "run folder", 1, "refused with the name of the file; nothing was changed")
