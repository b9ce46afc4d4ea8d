"""Bad values that the device finds and a later call raises; on a GPU or in Triton's interpreter."""

import pytest
import torch

from bcls import losses
from bcls.losses import base, definitions
from bcls.losses.backends import engine_for
from bcls.losses.definitions import SoftNegatives, check_now, sliding_windows
from bcls.losses.fused import matrix_loss
from tests.losses.factories import batch, check_plainly, slow_if_interpreted

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")
WINDOWS = sliding_windows(0.2, 0.6)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    check_now()


@pytest.fixture
def _deferred(monkeypatch):
    """As on a GPU: the device checks the values."""
    monkeypatch.setattr(base, "defers_checks", lambda similarity: True)


def look(similarity, relevance, *, bounded=True):
    """The check of the device, without waiting."""
    engine_for(DEVICE).check_values(similarity, relevance, bounded=bounded)


def spoilt(where, value, size=4):
    """Scores and labels with some bad cells."""
    matrices = dict(zip(("similarity", "relevance"), batch(size, device=DEVICE), strict=True))
    for row, column in ((2, 3), (3, 0)):
        matrices[where][row, column] = value
    return matrices["similarity"], matrices["relevance"]


BAD = [
    ("similarity", torch.nan, "`similarity`: expected finite numbers, got nan at row 2, column 3"),
    ("similarity", torch.inf, "`similarity`: expected finite numbers, got inf at row 2, column 3"),
    ("similarity", -torch.inf, "`similarity`: expected finite numbers, got -inf at row 2, column 3"),
    ("relevance", torch.nan, "`relevance`: expected finite numbers, got nan at row 2, column 3"),
    ("relevance", 1.5, r"`relevance`: expected labels in \[-1, 1\], got values from -0\.\d+ to 1.5"),
    ("relevance", -1.5, r"`relevance`: expected labels in \[-1, 1\], got values from -1.5 to 1"),
]


@pytest.mark.parametrize(("where", "value", "says"), BAD)
@pytest.mark.parametrize("largest", [pytest.param(0, marks=slow_if_interpreted), 4096])
def test_the_next_call_says_what_the_plain_path_says(where, value, says, largest, monkeypatch):
    from bcls.losses._triton import small

    monkeypatch.setattr(small, "LARGEST", largest)
    similarity, relevance = spoilt(where, value)
    terms = matrix_loss(similarity, relevance, soft=SoftNegatives(), windows=WINDOWS)
    if largest and value not in {1.5, -1.5}:
        assert terms.binary.isnan()
        assert terms.continuous.isnan()
    if GPU:
        torch.cuda.synchronize()
    with pytest.raises(ValueError, match=f"^{says}") as plain:
        definitions.check_values(similarity, relevance)
    with pytest.raises(ValueError, match=f"^{says} in an earlier call; ") as later:
        matrix_loss(*batch(4, device=DEVICE), windows=WINDOWS)
    assert str(later.value).replace(" in an earlier call", "") == str(plain.value)
    assert matrix_loss(*batch(4, device=DEVICE), windows=WINDOWS).continuous.isfinite()  # once is enough


@pytest.mark.parametrize(("where", "value", "says"), BAD)
def test_the_report_is_that_of_the_plain_form(where, value, says):
    similarity, relevance = spoilt(where, value)
    reports = []
    for check in (look, check_plainly):
        check(similarity, relevance)
        if GPU:
            torch.cuda.synchronize()
        reports.append(definitions.report_on(DEVICE).clone())
        with pytest.raises(ValueError, match=says):
            check_now()
    used = slice(None) if value in {1.5, -1.5} else [0, 1, 2, 5]  # bounds are undefined if a number is not finite
    assert torch.equal(*(report[used] for report in reports))


def test_a_nan_that_no_window_sees_is_not_hidden():
    """The least similar positive is a minimum, which passes over a NaN."""
    similarity, relevance = batch(3, device=DEVICE)
    similarity[0, 0] = torch.nan
    assert matrix_loss(similarity, relevance, windows=WINDOWS).continuous.isnan()
    with pytest.raises(ValueError, match=r"^`similarity`"):
        check_now()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_precisions_and_strides(dtype):
    """The greatest numbers of a type are finite."""
    similarity, relevance = (matrix.to(dtype).T for matrix in batch(5, device=DEVICE))
    similarity[0, 1] = torch.finfo(dtype).max
    look(similarity, relevance)
    check_now()
    similarity[4, 1] = torch.inf
    look(similarity, relevance)
    with pytest.raises(ValueError, match="got inf at row 4, column 1"):
        check_now()


def test_more_rows_and_columns_than_programs_look_at(monkeypatch):
    monkeypatch.setattr("bcls.losses._triton.engine._CHECK_PROGRAMS", 2)
    monkeypatch.setattr("bcls.losses._triton.engine._CHECK_WIDTH", 16)
    similarity, relevance = batch(19, device=DEVICE)
    relevance[18, 18], similarity[17, 17], similarity[18, 0] = 1.25, torch.nan, torch.nan
    look(similarity, relevance)
    with pytest.raises(ValueError, match="got nan at row 17, column 17"):
        check_now()
    look(similarity.nan_to_num(), relevance)
    with pytest.raises(ValueError, match=r"to 1.25 in an earlier call"):
        check_now()
    look(similarity.nan_to_num(), relevance, bounded=False)
    look(similarity.nan_to_num(), None)


@pytest.mark.usefixtures("_deferred")
@pytest.mark.parametrize("loss", [losses.BCLSLoss(beta=0.6), losses.TripletHardLoss(), losses.KendallLoss()], ids=repr)
def test_losses_do_not_wait(loss):
    similarity, relevance = spoilt("similarity", torch.nan)
    loss(similarity, relevance)
    with pytest.raises(ValueError, match="got nan at row 2, column 3 in an earlier call"):
        check_now()
    loss(*spoilt("relevance", 7.0))
    with pytest.raises(ValueError, match="to 7 in an earlier call"):
        losses.check_now()


@pytest.mark.usefixtures("_deferred")
def test_labels_of_any_scale_and_rounding():
    similarity, relevance = batch(4, device=DEVICE)
    losses.SAMLoss()(similarity, relevance * 10)
    rounded = relevance * (1 + 5e-5)
    assert losses.KendallLoss()(similarity, rounded) == losses.KendallLoss()(similarity, rounded.clamp(-1, 1))


@pytest.mark.skipif(not GPU, reason="needs an NVIDIA GPU")
def test_no_loss_waits_for_the_device():
    similarity, relevance = batch(64, device=DEVICE)
    leaf = similarity.requires_grad_()
    for loss in (
        losses.BCLSLoss(),
        losses.KendallWindowLoss(),
        losses.TripletSoftLoss(),
        losses.TripletHardLoss(),
        losses.KendallLoss(),
    ):
        loss(leaf, relevance)  # compiled, and its constants sent
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss(leaf, relevance).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not GPU, reason="needs an NVIDIA GPU")
def test_a_captured_graph_reports_too():
    similarity, relevance = batch(16, device=DEVICE)
    loss, stream = losses.BCLSLoss(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        loss(similarity, relevance)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss(similarity, relevance)
    graph.replay()
    check_now()
    similarity[1, 2] = torch.nan
    graph.replay()
    with pytest.raises(ValueError, match="got nan at row 1, column 2 in an earlier call"):
        check_now()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one():
    similarity, relevance = batch(16, device="cuda:1")
    leaf = similarity.requires_grad_()
    losses.BCLSLoss()(leaf, relevance).backward()
    losses.TripletHardLoss()(leaf, relevance)
    assert leaf.grad.isfinite().all()
    check_now()
