"""A short run of ``python -m tests.search.kill_rounds --kills 1000``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')


def test_killed_runs_lose_no_data():
    command = [sys.executable, "-m", "tests.search.kill_rounds", "--kills", "6", "--seed", "3"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert run.returncode == 0, run.stderr
    counts = json.loads(run.stdout)
    assert (counts["kills"], counts["lost"]) == (6, 0)
