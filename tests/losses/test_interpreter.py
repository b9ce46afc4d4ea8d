"""Runs the tests of the kernels in Triton's interpreter, in a process that enables it before Triton is imported."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "file", ["test_tile_kernels.py", "test_small_kernel.py", "test_value_kernel.py", "test_memory_guards.py"]
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="these files run on the GPU themselves")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason='needs triton: pip install "bcls[kernels]"')
def test_kernels_in_the_interpreter(file):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/losses/{file}"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-6000:]
    assert " passed" in run.stdout
    assert "neither a GPU" not in run.stdout
