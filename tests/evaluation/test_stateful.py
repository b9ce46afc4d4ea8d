"""The metric with state against the plain evaluation of all pairs at once, in one process and in two."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from bcls.evaluation import RetrievalMetrics, kendall, recalls
from bcls.labels.relevance import relevance

#: Captions by image; the ids are not in order and have gaps.
IMAGE_IDS = torch.tensor([40, 7, 7, 23, 40, 7, 23, 91, 91, 40, 15])
CAPTION_IDS = torch.tensor([3, 900, 12, 4, 5, 77, 6, 1, 2, 8, 50])


def pairs(seed=0):
    """Embeddings of 5 images, of 11 captions, and label vectors of the captions."""
    generator = torch.Generator().manual_seed(seed)
    by_image = {image: torch.randn(6, generator=generator) for image in IMAGE_IDS.unique().tolist()}
    images = functional.normalize(torch.stack([by_image[image] for image in IMAGE_IDS.tolist()]), dim=1)
    captions = functional.normalize(images + 0.5 * torch.randn(11, 6, generator=generator), dim=1)
    return images, captions, torch.randn(11, 4, generator=generator)


def expected(ks=(1, 5, 10)):
    images, captions, vectors = (rows.numpy() for rows in pairs())
    order = np.argsort(CAPTION_IDS.numpy())
    known, owner = np.unique(IMAGE_IDS.numpy()[order], return_inverse=True)
    gallery = np.stack([images[IMAGE_IDS.tolist().index(image)] for image in known])
    similarity = gallery @ captions[order].T
    labels = relevance(vectors[order], vectors[order], owner, caption_image=owner)
    return recalls(similarity, owner, ks), kendall(similarity, labels)


def fill(metrics, batches, with_vectors=True):
    images, captions, vectors = pairs()
    for rows in batches:
        extra = vectors[rows] if with_vectors else None
        metrics.update(images[rows], captions[rows], IMAGE_IDS[rows], CAPTION_IDS[rows], extra)
    return metrics


def test_batches_in_any_order_give_the_metrics_of_all_pairs():
    found, taus = expected()
    for seed in range(3):
        order = torch.randperm(11, generator=torch.Generator().manual_seed(seed))
        assert fill(RetrievalMetrics(), order.split(4)).compute() == pytest.approx(found | taus)
    assert fill(RetrievalMetrics(ks=(2,)), [torch.arange(11)], with_vectors=False).compute() == expected((2,))[0]


def test_repeated_pairs_count_once():
    batches = [torch.arange(11), torch.tensor([0, 1, 1, 8])]
    assert fill(RetrievalMetrics(), batches).compute() == pytest.approx(expected()[0] | expected()[1])


def test_reset_forgets():
    metrics = fill(RetrievalMetrics(), [torch.arange(4)])
    metrics.reset()
    with pytest.raises(ValueError, match=r"`batches`: expected at least one call of update\(\), got none"):
        metrics.compute()
    assert fill(metrics, [torch.arange(11)]).compute() == pytest.approx(expected()[0] | expected()[1])


def test_gradients_are_not_kept_and_half_precision_is_accepted():
    images, captions, _ = pairs()
    metrics = RetrievalMetrics()
    metrics.update(images.half().requires_grad_(), captions.half(), IMAGE_IDS, CAPTION_IDS)
    assert not any(rows.requires_grad for rows in metrics._batches[0])
    assert metrics.compute().keys() == expected()[0].keys()


def test_wrong_batches_raise():
    images, captions, vectors = pairs()
    metrics = RetrievalMetrics()
    with pytest.raises(ValueError, match=r"as many rows as captions, ids and vectors, got \[11, 11, 11, 10\]"):
        metrics.update(images, captions, IMAGE_IDS, CAPTION_IDS[1:])
    metrics.update(images, captions, IMAGE_IDS, CAPTION_IDS)
    with pytest.raises(ValueError, match="vectors in all batches or in none"):
        metrics.update(images, captions, IMAGE_IDS, CAPTION_IDS, vectors)
    with pytest.raises(ValueError, match="ks"):
        RetrievalMetrics(ks=())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_ids": [0, 1, 2]}, r"`image_ids`: expected a tensor \(b,\), got list; pass one row for each pair"),
        ({"images": torch.ones(3)}, r"`images`: expected a tensor \(b, d\), got shape \(3,\)"),
        ({"caption_ids": torch.ones(3, 1)}, r"`caption_ids`: expected a tensor \(b,\), got shape \(3, 1\)"),
        ({"captions": torch.ones(3, 4)}, r"`captions`: expected embeddings .* of width 3, got widths \(3, 4\)"),
        ({"images": torch.ones(3, 4), "captions": torch.ones(3, 4)}, r"of width 3, got widths \(4, 4\)"),
    ],
)
def test_arguments_of_another_form_raise(arguments, message):
    metrics = RetrievalMetrics()
    batch = {
        "images": torch.eye(3),
        "captions": torch.eye(3),
        "image_ids": torch.arange(3),
        "caption_ids": torch.arange(3),
    }
    metrics.update(**batch)
    with pytest.raises(ValueError, match=message):
        metrics.update(**(batch | arguments))
    assert metrics.compute()["rsum"] == 600.0


def test_a_process_group_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        metrics = fill(RetrievalMetrics(), torch.arange(11).split(5)).compute()
        with pytest.raises(ValueError, match="at least one call of update"):
            RetrievalMetrics().compute()
    finally:
        dist.destroy_process_group()
    assert metrics == pytest.approx(expected()[0] | expected()[1])


def share(rank, store, uneven, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    # With `uneven` the second process has no batch; otherwise pair 0 is in both shares, as a sampler fills up.
    shares = (
        [torch.arange(11).split(3), []] if uneven else [[torch.arange(6)], torch.tensor([6, 7, 8, 9, 10, 0]).split(4)]
    )
    results[rank] = fill(RetrievalMetrics(), shares[rank]).compute()
    dist.destroy_process_group()


@pytest.mark.parametrize("uneven", [False, True])
def test_two_processes_give_the_metrics_of_one(tmp_path, uneven):
    results = torch.multiprocessing.Manager().dict()
    torch.multiprocessing.spawn(share, (str(tmp_path / "store"), uneven, results), nprocs=2)
    for rank in range(2):
        assert results[rank] == pytest.approx(expected()[0] | expected()[1])
