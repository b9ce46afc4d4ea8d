"""The summary of skipped tests, and the failures in its place if CI is set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.skip(reason="needs Chromium: install it")
def test_browser():
    pass

def test_accessibility():
    pytest.importorskip("no_such_module", reason="needs axe-core: install it")

@pytest.mark.parametrize("one", [1, 2])
def test_gpu(one):
    pytest.skip("needs an NVIDIA GPU")

@pytest.mark.xfail
def test_known():
    assert False

def test_passes():
    pass
"""


def run(folder, ci, *arguments):
    (folder / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text(encoding="utf-8"))
    (folder / "test_one.py").write_text(TESTS)
    (folder / "test_two.py").write_text("import pytest\npytest.importorskip('no_such', reason='needs playwright')\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, str(folder)]
    environment = {**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # some take long to import
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")
    return done.returncode, done.stdout


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "1")], ids=["one process", "workers"])
def test_the_summary_counts_by_reason(tmp_path, workers):
    code, out = run(tmp_path, "", *workers)
    assert code == 0
    assert " 5 skipped ===" in out
    lines = [line.strip() for line in out.splitlines()]
    for line in ("2 needs an NVIDIA GPU", "1 needs Chromium: install it", "1 needs axe-core: install it"):
        assert line in lines
    assert "1 needs playwright" in lines


def test_a_browser_skip_is_a_failure_in_continuous_integration(tmp_path):
    code, out = run(tmp_path, "true", "--continue-on-collection-errors")
    assert code == 1
    assert "1 failed, 1 passed, 2 skipped, 1 xfailed, 2 errors" in out
    assert "CI is set, and this test was skipped: needs Chromium: install it" in out
