import pytest
import torch
from torch.nn import functional

from bcls.losses import BCLSLoss

pytest.importorskip("pytorch_metric_learning", reason='needs pip install "bcls[dev]"')


@pytest.fixture
def module(example):
    return example("metric_learning_loss")


def test_across_modalities_it_is_the_loss_of_the_library(module):
    generator = torch.Generator().manual_seed(0)
    images, captions = (torch.randn(5, 4, generator=generator, requires_grad=True) for _ in "it")
    table = torch.rand(3, 7, generator=generator)
    labels, places = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([6, 0, 3, 2, 4])
    value = module.BCLSMetricLoss(table)(images, labels, ref_emb=captions, ref_labels=places)
    cosines = functional.normalize(images, dim=1) @ functional.normalize(captions, dim=1).T
    chosen = torch.stack([torch.stack([table[image, place] for place in places]) for image in labels])
    torch.testing.assert_close(value, BCLSLoss()(cosines, chosen, image_ids=labels))
    value.backward()
    assert images.grad.abs().sum() > 0
    assert captions.grad.abs().sum() > 0


def test_within_one_modality_labels_are_classes(module):
    """Two classes that are alike should end nearer than two that are not."""
    table = torch.tensor([[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 1.0]])
    labels = torch.arange(3).repeat(4)
    torch.manual_seed(0)
    rows = torch.nn.Parameter(torch.randn(12, 8))
    loss_fn, optimizer = module.BCLSMetricLoss(table), torch.optim.Adam([rows], lr=0.05)
    first = None
    for _ in range(60):
        optimizer.zero_grad()
        loss = loss_fn(rows, labels)
        first = loss.item() if first is None else first
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2 * first
    cosines = functional.normalize(rows.detach(), dim=1) @ functional.normalize(rows.detach(), dim=1).T
    pair = [[cosines[labels == a][:, labels == b].mean() for b in range(3)] for a in range(3)]
    assert pair[0][0] > pair[0][1] > pair[0][2]


def test_what_it_cannot_use_is_refused(module):
    from pytorch_metric_learning.distances import LpDistance

    rows, labels = torch.randn(3, 4), torch.arange(3)
    loss_fn = module.BCLSMetricLoss(torch.eye(3))
    with pytest.raises(ValueError, match="no miner"):
        loss_fn(rows, labels, indices_tuple=(labels, labels, labels))
    with pytest.raises(ValueError, match="labels on both sides"):
        loss_fn(rows)
    with pytest.raises(ValueError, match="CosineSimilarity"):
        module.BCLSMetricLoss(torch.eye(3), distance=LpDistance())(rows, labels)


def test_images_and_captions_learn(module):
    metrics = module.main()
    assert metrics["after"]["rsum"] > 3 * metrics["before"]["rsum"]
    assert metrics["after"]["i2t_tau_a"] > 0.1 + metrics["before"]["i2t_tau_a"]
