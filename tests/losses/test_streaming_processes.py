"""A batch spread over processes has the loss and the gradients of the whole batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from bcls.losses import StreamingBCLSLoss
from tests.losses.factories import assert_same, embeddings, ids_of

#: Rows of each rank.
SHARES = {2: (11, 18), 4: (9, 1, 12, 7)}
SIZE = 29


def loss_of(images, texts, captions, ids, group=None):
    return StreamingBCLSLoss(lse="mean", group=group, step=5)(images, texts, captions, image_ids=ids)


def whole_batch(with_ids):
    images, texts, captions = embeddings(SIZE)
    return images, texts, captions, ids_of(SIZE) if with_ids else None


def result(parts, group=None):
    images, texts, captions, ids = parts
    images, texts = images.clone().requires_grad_(), texts.clone().requires_grad_()
    value = loss_of(images, texts, captions, ids, group)
    (3 * value).backward()
    return value.detach(), images.grad, texts.grad


def work(rank, folder, ranks):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    for with_ids in (False, True):
        mine = [part if part is None else part.split(SHARES[ranks])[rank] for part in whole_batch(with_ids)]
        torch.save(result(mine, dist.group.WORLD), f"{folder}/{with_ids}-{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("with_ids", [False, True])
def test_a_group_of_one_process_is_a_whole_batch(tmp_path, with_ids):
    """In this process, so that coverage sees it."""
    expected = result(whole_batch(with_ids))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert_same(result(whole_batch(with_ids), dist.group.WORLD), expected)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_equal_one_process(tmp_path, ranks):
    processes.spawn(work, (str(tmp_path), ranks), nprocs=ranks)
    for with_ids in (False, True):
        value, by_image, by_text = result(whole_batch(with_ids))
        parts = [torch.load(tmp_path / f"{with_ids}-{rank}.pt", weights_only=True) for rank in range(ranks)]
        for part in parts:
            torch.testing.assert_close(part[0], value)
        torch.testing.assert_close(torch.cat([part[1] for part in parts]), by_image)
        torch.testing.assert_close(torch.cat([part[2] for part in parts]), by_text)
