"""Runs the tests of the kernels in Triton's interpreter, in a process that enables it before Triton is imported."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.losses.factories import KERNEL_TESTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("tests", "least"), [("not slow", 85), pytest.param("slow", 30, marks=pytest.mark.slow)], ids=["fast", "slow"]
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="the tests of the kernels run on the GPU themselves")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason='needs triton: pip install "bcls[kernels]"')
def test_kernels_in_the_interpreter(tests, least):
    files = [*(f"tests/losses/{file}" for file in KERNEL_TESTS), "tests/models/test_cross_kernels.py"]
    options = ["-q", "-p", "no:cacheprovider", "-m", tests]
    command = [sys.executable, "-m", "pytest", *options, *files]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-6000:]
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) >= least
