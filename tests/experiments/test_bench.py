"""Benchmarks: measurements, the implementations that are compared, and the subjects."""

import json
import time
from dataclasses import replace

import pytest
import torch

from bcls.experiments import bench
from bcls.experiments.bench import (
    DEVIATION,
    LIMIT,
    MEAN,
    SUBJECTS,
    embeddings,
    matrices,
    medians,
    megabytes,
    milliseconds,
    run_all,
    run_subject,
    step,
)
from bcls.losses import InfoNCELoss, KendallWindowLoss, StreamingBCLSLoss, TripletHardLoss
from benchmarks.tables import difference
from tests.losses.factories import assert_same
from tests.reference.window_loop import loop_over_windows

CPU = torch.device("cpu")


def test_medians_take_turns_in_changing_order_and_leave_out_the_first_step_of_each():
    calls = []
    rivals = {name: lambda name=name: calls.append(name) for name in "ab"}
    took = medians(rivals, CPU, 8)
    begun, turns = calls[:4], ["".join(calls[start : start + 4]) for start in range(4, len(calls), 4)]
    assert begun == list("aabb")
    assert len(turns) == 16
    assert all({one, other} == {"aaaa", "bbbb"} for one, other in zip(turns[::2], turns[1::2], strict=True))
    assert {"aaaa", "bbbb"} <= set(turns[::2])  # neither is always the first
    assert took.keys() == rivals.keys()
    assert all(value > 0 for value in took.values())


def test_milliseconds_are_milliseconds():
    assert 20 <= milliseconds(lambda: time.sleep(0.02), CPU) < 2000


@pytest.mark.parametrize(("run", "kept", "expected"), [
    (lambda: torch.empty(1_000_000), 0, 4),
    (lambda: torch.empty(1_000_000), 4_000_000, 0),
    (lambda: (torch.empty(1_000_000).sum(), torch.empty(500_000)), 0, 4),
])  # fmt: skip
def test_megabytes_are_the_peak_without_what_is_kept(run, kept, expected):
    assert megabytes(run, CPU, kept) == pytest.approx(expected, abs=0.01)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu():
    device = torch.device("cuda", 0)
    assert megabytes(lambda: torch.empty(1_000_000, device=device), device) == pytest.approx(4, rel=0.1)
    assert (
        milliseconds(lambda: torch.randn(4096, 4096, device=device).mm(torch.randn(4096, 4096, device=device)), device)
        > 0
    )


def test_difference_is_the_largest_of_value_and_gradients():
    leaf = torch.ones(3, requires_grad=True)
    ours = step(lambda a: (a**2).sum(), (leaf,))
    assert difference(ours, ours) == 0
    assert difference(ours, (ours[0] * 1.25, ours[1])) == pytest.approx(0.2)
    assert difference(ours, (ours[0], ours[1] * 2)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("rival", "ours"),
    [
        (bench.window_loop, KendallWindowLoss()),
        (bench.plain(KendallWindowLoss()), KendallWindowLoss()),
        (lambda similarity, _: bench.hard_triplets(similarity), TripletHardLoss()),
        (lambda similarity, _: bench.infonce(similarity), InfoNCELoss()),
    ],
)
def test_all_implementations_compute_the_same(rival, ours):
    similarity, relevance = matrices(40, CPU)
    assert_same(step(rival, (similarity,), relevance), step(ours, (similarity,), relevance))


def test_the_loop_is_that_of_the_reference():
    similarity, relevance = matrices(40, CPU)
    relevance = relevance.mul(10).round().div(10)  # on the edges of windows
    torch.testing.assert_close(bench.window_loop(similarity, relevance), loop_over_windows(similarity, relevance) / 40)


def test_streaming_and_matrices_agree():
    leaves, captions = embeddings(30, 16, 12, CPU)
    assert_same(step(StreamingBCLSLoss(), leaves, captions), step(bench.matrix_bcls, leaves, captions))


def test_labels_are_distributed_as_real_ones():
    similarity, relevance = matrices(300, CPU)
    others = relevance[~torch.eye(300, dtype=torch.bool)]
    assert float(others.mean()) == pytest.approx(MEAN, abs=0.005)
    assert float(others.std()) == pytest.approx(DEVIATION, abs=0.005)
    assert (relevance.diagonal() == 1).all()
    assert similarity.requires_grad
    assert torch.equal(matrices(300, CPU)[1], relevance)


@pytest.fixture
def _quickly(monkeypatch):
    monkeypatch.setattr(bench, "_QUICK_SECONDS", 0.0)
    monkeypatch.setattr(bench, "_FEWEST", 1)


@pytest.mark.usefixtures("_quickly")
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_subject_measures_every_path_at_every_value(name, monkeypatch):
    if name == "names":
        monkeypatch.setitem(SUBJECTS, name, replace(SUBJECTS[name], cpu=(16, 32)))
    result = run_subject(name, CPU, quick=True)
    axis, values = result["axis"], SUBJECTS[name].cpu[:2]
    assert sorted({row[axis] for row in result["rows"]}) == sorted(values)
    assert all(row["ms"] > 0 for row in result["rows"])
    assert all((row["MB"] > 0) == (row["path"] != LIMIT) for row in result["rows"])
    assert {row["path"] for row in result["rows"] if row[axis] == values[0]} >= {LIMIT}
    assert result["machine"].startswith("CPU")
    json.dumps(result)


def test_slow_paths_stop_early():
    few, _ = SUBJECTS["losses"].paths(1024, CPU)
    many, kept = SUBJECTS["losses"].paths(1025, CPU)
    assert few.keys() - many.keys() == {"dense Kendall, plain", "K-SW-HS, loop over windows"}
    assert kept == 4 * 1025**2


def test_an_unknown_subject_raises():
    with pytest.raises(ValueError, match="did you mean 'losses'"):
        run_subject("loses", CPU)


@pytest.mark.usefixtures("_quickly")
def test_results_are_kept_if_a_later_benchmark_is_interrupted(tmp_path, monkeypatch):
    def stop(size, device):
        raise KeyboardInterrupt

    monkeypatch.setitem(SUBJECTS, "windows", bench.Subject("t", "M", (1,), (1,), stop))
    with pytest.raises(KeyboardInterrupt):
        run_all(["width", "windows"], tmp_path / "new", "cpu", quick=True)
    kept = {path.name for path in (tmp_path / "new").iterdir()}
    assert json.loads((tmp_path / "new" / "bench-width.json").read_text())["subject"] == "width"
    assert {"bench-width.json", "bench.md"} <= kept <= {"bench-width.json", "bench-width.svg", "bench.md"}
