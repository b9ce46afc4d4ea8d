"""A short run of ``python -m tests.search.kill_rounds --rounds 1000``."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')


def test_killed_runs_lose_no_data():
    command = [sys.executable, "-m", "tests.search.kill_rounds", "--rounds", "10", "--seed", "3"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert run.returncode == 0, run.stderr
    assert "no data lost" in run.stdout
