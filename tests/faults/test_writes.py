"""Full disks and kills during writing: the old or the new version is complete, and the next run continues."""

import os

import pytest

from tests.faults.faulty import contents, die_at_every_step, files_end_at
from tests.faults.records import tried
from tests.faults.targets import MADE, REPLACED


def largest_file(folder):
    """Return the size of the largest file in bytes."""
    return max(len(content) for content in contents(folder).values())


@pytest.mark.parametrize("kind", REPLACED, ids=lambda kind: kind.__name__)
def test_full_disk_while_replacing(tmp_path, kind):
    target = kind(tmp_path)
    target.write(0)
    largest, refused, written = largest_file(tmp_path), 0, 0
    rooms = range(0, largest + 4096, 1 if largest < 1500 else max(1, largest // 60))
    for room in rooms:
        try:
            with files_end_at(room):
                target.write(1)
            written += 1
        except OSError:
            refused += 1
        version = target.read()
        if version == 1:
            break
        assert version == 0
    assert target.read() == 1, "it was never written"
    tried("full disk", kind.name, refused + written, f"{refused} errors with the old version intact, then written")


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_full_disk_while_making(tmp_path, kind):
    largest, refused, number = 4096, 0, 0
    for number, room in enumerate(range(0, largest, 7)):
        folder = tmp_path / str(number)
        folder.mkdir()
        target = kind(folder)
        try:
            with files_end_at(room):
                target.write()
        except OSError:
            refused += 1
            assert not target.is_whole()
            target.write()  # with enough space
            assert target.is_whole()
        else:
            assert target.is_whole()
            break
    assert refused
    tried("full disk", kind.name, number + 1, f"{refused} errors, then completed by the next run")


@pytest.mark.parametrize("kind", REPLACED[:-1], ids=lambda kind: kind.__name__)
def test_killed_at_every_step_while_replacing(tmp_path, monkeypatch, kind):
    target = kind(tmp_path)
    target.write(0)
    seen = {0: 0, 1: 0}

    def look():
        seen[target.read()] += 1
        target.write(0)

    deaths = die_at_every_step(lambda: target.write(1), monkeypatch, look)
    assert target.read() == 1
    assert seen[0] >= 3
    tried(
        "killed at every step",
        kind.name,
        deaths,
        f"{seen[0]} times the old version, {seen[1]} times the new, always complete",
    )


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_killed_at_every_step_while_making(tmp_path, monkeypatch, kind):
    number = 0

    def fresh():
        (tmp_path / str(number)).mkdir(exist_ok=True)
        return kind(tmp_path / str(number))

    def look():
        nonlocal number
        target = fresh()
        if not target.is_whole() or kind.__name__ == "Regions":
            target.write()
        assert target.is_whole()
        number += 1

    deaths = die_at_every_step(lambda: fresh().write(), monkeypatch, look)
    tried("killed at every step", kind.name, deaths, "completed by the next run, with the same contents")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_memory_map_on_a_small_disk(tmp_path):
    """On a disk that is really full, creating a memory map fails before its first write."""
    import subprocess

    from bcls.data.features import new_array

    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no rights to mount a small disk here")
    try:
        with pytest.raises(OSError, match="No space left"):
            new_array(disk / "a.npy", "float32", (1000, 1000))
        (disk / "a.npy").unlink()
        array = new_array(disk / "a.npy", "float32", (100, 100))
        array[:] = 1
        array.flush()
        del array  # a memory map keeps the file system busy
        tried("full disk", "file that is mapped into memory", 1, "error before the first byte, on a disk of 256 kB")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
