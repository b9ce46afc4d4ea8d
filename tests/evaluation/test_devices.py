"""Tensors on a GPU give the same metrics as arrays."""

import numpy as np
import pytest
import torch

from bcls import evaluation

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

OWNER = np.arange(30) % 12


@pytest.mark.parametrize(
    "metrics",
    [
        lambda s, r: evaluation.kendall(s, r),
        lambda s, r: evaluation.ndcg(s, r, k=5),
        lambda s, r: evaluation.coherent_score(s, r, 6),
        lambda s, r: evaluation.ncs(s, r, OWNER),
        lambda s, _: evaluation.median_rank(s, OWNER),
        lambda s, _: evaluation.pmrp(s, OWNER, np.eye(12), "pcme"),
        lambda s, _: evaluation.recall_intervals(s, OWNER, resamples=20),
        lambda s, _: evaluation.hubness(s, 3),
        lambda s, r: evaluation.qb_norm_recalls(s, OWNER, r, r),
    ],
)
def test_a_gpu_gives_the_same_metrics(metrics):
    generator = torch.Generator().manual_seed(0)
    similarity, relevance = torch.randn(12, 30, generator=generator), torch.rand(12, 30, generator=generator)
    assert metrics(similarity.cuda(), relevance.cuda()) == metrics(similarity.numpy(), relevance.numpy())


def test_the_metrics_of_coco(monkeypatch):
    from bcls.evaluation.coco import Truth

    gold = {(name, "t2i"): {10 + c: [c] for c in range(5)} for name in ("coco", "cxc", "eccv")}
    gold |= {(name, "i2t"): {c: [10 + c] for c in range(5)} for name in ("coco", "cxc", "eccv")}
    monkeypatch.setitem(evaluation.eccv.__globals__, "load_truth", lambda: Truth.build(gold, range(10, 15)))
    similarity = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    images, captions = [3, 1, 4, 0, 2], [12, 14, 10, 13, 11]
    on_gpu = evaluation.eccv(similarity.cuda(), torch.tensor(images).cuda(), captions)
    assert on_gpu == evaluation.eccv(similarity.numpy(), images, captions)
