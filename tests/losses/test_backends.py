"""The choice of the backend."""

import importlib.util
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from bcls.losses import KendallLoss, backends, fused
from bcls.losses._torch.engine import TorchEngine
from bcls.losses.backends import can_fuse, defers_checks, engine_for, triton_runs_on
from bcls.losses.definitions import SoftNegatives


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


def test_the_dense_kendall_loss_uses_its_kernel_for_up_to_32_bits(monkeypatch):
    engine = Recorder(torch.device("cpu"))
    monkeypatch.setattr(backends, "triton_runs_on", lambda device: True)
    monkeypatch.setattr("bcls.losses.kendall.engine_for", lambda device: engine)
    scores, labels = torch.randn(7, 7), torch.eye(7)
    value = KendallLoss()(scores, labels)
    assert engine.sizes == [7]
    KendallLoss()(scores, labels.double())  # the kernel has no float64 labels
    KendallLoss()(scores.double(), labels)
    with backends.without_kernels():
        assert KendallLoss()(scores, labels) == value
    assert engine.sizes == [7]


def test_cuda_needs_triton():
    installed = importlib.util.find_spec("triton") is not None
    assert triton_runs_on(torch.device("cuda")) is installed
    assert not triton_runs_on(torch.device("meta"))


def test_triton_is_used_where_it_runs(monkeypatch):
    pytest.importorskip("triton", reason='needs triton: pip install "bcls[kernels]"')
    monkeypatch.setattr(backends, "triton_runs_on", lambda device: True)
    assert type(engine_for(torch.device("cpu"))).__name__ == "TritonEngine"


def test_kernels_run_on_the_gpu_of_their_input(monkeypatch):
    """With stand-ins for a second GPU and for the kernel of small matrices."""
    entered = []
    term = torch.tensor(2.0)

    @contextmanager
    def device_of(tensor):
        entered.append(tensor)
        yield

    class Small(TorchEngine):
        def one_launch(self, *inputs):
            return term, term

    monkeypatch.setattr(fused, "on_other_gpu", lambda tensor: not entered)
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(fused, "engine_for", Small)
    similarity = torch.zeros(2, 2)
    assert fused.matrix_loss(similarity, soft=SoftNegatives()) == (term, term)
    assert len(entered) == 1


def test_importing_the_package_does_not_import_triton():
    code = "import sys, bcls.losses; print('triton' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
