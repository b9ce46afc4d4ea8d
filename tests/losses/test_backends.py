"""The choice of the backend."""

import subprocess
import sys

import pytest
import torch

from bcls.losses import KendallLoss, backends
from bcls.losses._torch.engine import TorchEngine
from bcls.losses.backends import can_fuse, defers_checks, engine_for, triton_runs_on


def test_float64_and_tracing_use_the_plain_losses(monkeypatch):
    monkeypatch.setattr(backends, "triton_runs_on", lambda device: True)
    assert can_fuse(torch.zeros(2, 2))
    assert can_fuse(torch.zeros(2, 2, dtype=torch.bfloat16))
    assert not can_fuse(torch.zeros(2, 2, dtype=torch.float64))
    seen = []

    def note(matrix):
        seen.append(can_fuse(matrix))
        return matrix.sum()

    torch.func.vmap(note)(torch.zeros(3, 2, 2))
    torch.func.grad(note)(torch.zeros(2, 2))
    assert seen == [False, False]


@pytest.mark.skipif(triton_runs_on(torch.device("cpu")), reason="Triton's interpreter is on")
def test_a_cpu_uses_plain_torch():
    assert isinstance(engine_for(torch.device("cpu")), TorchEngine)
    assert not can_fuse(torch.zeros(2, 2))
    assert not defers_checks(torch.zeros(2, 2))


class Recorder(TorchEngine):
    """Plain torch that records the calls of the dense Kendall loss."""

    def __init__(self, device):
        super().__init__(device)
        self.sizes = []

    def dense_kendall(self, similarity, relevance, *arguments, **named):
        self.sizes.append(len(similarity))
        return super().dense_kendall(similarity, relevance, *arguments, **named)


def test_the_dense_kendall_loss_uses_its_kernel_where_it_is_the_better_choice(monkeypatch):
    engine = Recorder(torch.device("cpu"))
    monkeypatch.setattr(backends, "triton_runs_on", lambda device: True)
    monkeypatch.setattr("bcls.losses.kendall.engine_for", lambda device: engine)
    monkeypatch.setattr("bcls.losses.kendall.DENSE_KERNEL_UP_TO", 6)
    scores, labels = torch.randn(7, 7), torch.eye(7)
    values = [KendallLoss()(scores[:size, :size], labels[:size, :size]) for size in (5, 6, 7)]
    assert engine.sizes == [5, 6]  # larger batches: the sub-cubic count of plain torch
    KendallLoss()(scores[:5, :5], labels[:5, :5].double())  # the kernel has no float64 labels
    KendallLoss()(scores[:5, :5].double(), labels[:5, :5])
    with backends.without_kernels():
        KendallLoss()(scores[:5, :5], labels[:5, :5])
        assert [KendallLoss()(scores[:size, :size], labels[:size, :size]) for size in (5, 6, 7)] == values
    assert engine.sizes == [5, 6]


def test_importing_the_package_does_not_import_triton():
    code = "import sys, bcls.losses; print('triton' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
