import os
import subprocess
import sys

import pytest

from bcls.cli import main as allocator


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_processes_started_from_here_are_told():
    code = (
        "import os; from bcls.cli.main import keep_freed_memory; print(keep_freed_memory(), "
        "os.environ['MALLOC_TRIM_THRESHOLD_'], os.environ['MALLOC_MMAP_THRESHOLD_'])"
    )
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    run = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "1073741824", "1073741824"]
    own = clean | {"MALLOC_TRIM_THRESHOLD_": "5"}
    run = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert run.stdout.split()[1] == "5"


def test_another_system_is_left_alone(monkeypatch):
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    assert not allocator.keep_freed_memory()


def test_another_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(allocator.sys, "platform", "linux")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory()
