import subprocess
import sys

import pytest
import torch

from bcls.kernels import engines, kendall_matrix, usable
from bcls.kernels._torch_engine import TorchEngine


def test_float64_and_tracing_are_for_the_plain_losses(monkeypatch):
    monkeypatch.setattr(engines, "runs_triton", lambda device: True)
    assert usable(torch.zeros(2, 2))
    assert usable(torch.zeros(2, 2, dtype=torch.bfloat16))
    assert not usable(torch.zeros(2, 2, dtype=torch.float64))
    seen = []

    def look(matrix):
        seen.append(usable(matrix))
        return matrix.sum()

    torch.func.vmap(look)(torch.zeros(3, 2, 2))
    torch.func.grad(look)(torch.zeros(2, 2))
    assert seen == [False, False]


@pytest.mark.skipif(engines.runs_triton(torch.device("cpu")), reason="Triton's interpreter is on")
def test_plain_torch_on_a_cpu():
    assert isinstance(engines.engine_for(torch.device("cpu")), TorchEngine)
    assert not usable(torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"^`similarity`.*bcls\.losses\.KendallLoss"):
        kendall_matrix(torch.zeros(2, 2), torch.zeros(2, 2))


def test_importing_the_package_does_not_import_triton():
    code = "import sys, bcls.kernels; print('triton' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
