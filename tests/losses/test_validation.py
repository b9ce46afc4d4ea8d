"""Reports of a GPU that checks values, with a stand-in for the GPU."""

import pytest
import torch

from bcls.losses import check_now, definitions

CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that has reported NaN at row 1, column 2; counts how often it was waited for."""
    tensor = torch.tensor([1.0, 4 * 6, -1, -0.5, 1.0, 4], dtype=torch.float64)
    waited = []
    monkeypatch.setattr(definitions, "_REPORTS", {CUDA: (tensor, tensor.numpy())})
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return waited


def test_a_report_is_raised_once_after_waiting_for_the_gpu(gpu):
    with pytest.raises(
        ValueError, match="`similarity`: expected finite numbers, got nan at row 1, column 2 in an earlier"
    ):
        check_now()
    assert gpu == [CUDA, CUDA]
    check_now()
    assert gpu == [CUDA] * 3
    assert not definitions._REPORTS[CUDA][0].any()


def test_the_first_cell_is_reported(gpu):
    definitions._REPORTS[CUDA][0][1] = 0
    with pytest.raises(ValueError, match="got nan at row 0, column 0 in an earlier"):
        check_now()


def test_nothing_is_raised_while_a_graph_is_captured(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    definitions.raise_reported(CUDA)
    assert gpu == []
    monkeypatch.setattr(definitions, "_REPORTS", {})
    assert definitions.report_on(CUDA) is None  # memory cannot be pinned now
    definitions.raise_reported(CUDA)


def test_values_of_a_captured_graph_are_not_read(gpu, monkeypatch):
    assert not definitions.is_traced(torch.zeros(1))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert definitions.is_traced(torch.zeros(1))
    assert definitions.check_values(torch.full((1, 1), torch.nan), None) == -1
