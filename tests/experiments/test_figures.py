import numpy as np
import pytest
import torch

from bcls.data.dataset import open_dataset
from bcls.data.synthetic import load, true_relevance
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls
from bcls.experiments.metrics import draw_scenes, on_device, split_metrics
from bcls.experiments.run import SharedData
from tests.experiments.made import data


def test_on_drawn_scenes_the_order_is_judged_by_the_truth(tmp_path):
    draw_scenes(tmp_path / "scenes", 40)
    split = open_dataset(tmp_path / "scenes").split("test")
    drawn = load(tmp_path / "scenes")
    truth = true_relevance(drawn.scenes[-len(split.images) :], drawn.captions[-len(split.captions) :])
    scores = truth + np.random.default_rng(0).normal(0, 0.05, truth.shape)
    figures, ranks = split_metrics(split, scores)
    taus = kendall(scores, truth)
    assert figures["true_tau"] == pytest.approx((taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2)
    assert "tau" not in figures
    assert len(ranks.i2t) == len(split.images)


def test_folds_are_added_and_labels_bring_tau(tmp_path):
    shared = SharedData(data(tmp_path / "data"), tmp_path / "shared")
    split = shared.dataset.split("test")
    scores = np.random.default_rng(0).random((len(split.images), len(split.captions))).astype(np.float32)
    figures, _ = split_metrics(split, scores, shared.captions(split, "wordllama"), folds=4)
    assert figures["rsum"] == recalls(scores, split.image_of_caption)["rsum"]
    assert figures["fold_rsum"] == recalls(scores, split.image_of_caption, folds=4)["rsum"]
    assert figures["tau"] == pytest.approx((figures["i2t_tau_a"] + figures["t2i_tau_a"]) / 2)
    assert all(np.isfinite(value) for value in figures.values())


class OnGpu(torch.Tensor):
    """Scores that say they were sent to a GPU, where there is none."""

    def cuda(self):
        return "on the GPU"


@pytest.mark.parametrize(
    ("device", "there", "sent"),
    [("auto", True, True), ("cuda", True, True), ("cpu", True, False), ("auto", False, False), ("cpu", False, False)],
)
def test_a_gpu_is_used_where_there_is_one_and_it_may_be(monkeypatch, device, there, sent):
    scores = np.zeros((2, 4), np.float32)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch, "from_numpy", lambda array: torch.tensor(array).as_subclass(OnGpu))
    found = on_device(scores, device)
    assert found == "on the GPU" if sent else found is scores


def test_figures_leave_a_gpu_alone_that_must_not_be_used(tmp_path, monkeypatch):
    shared = SharedData(data(tmp_path / "data"), tmp_path / "shared")
    split = shared.dataset.split("test")
    scores = np.random.default_rng(0).random((len(split.images), len(split.captions))).astype(np.float32)
    plain, _ = split_metrics(split, scores)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # what is sent there raises on a machine without one
    assert split_metrics(split, scores, device="cpu")[0] == plain
