import numpy as np
import pytest
import torch

from bcls.training.batch_labels import BatchLabels


@pytest.fixture
def vectors():
    return np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32)


OWNER = np.repeat(np.arange(100), 3)
CPU = torch.device("cpu")


def test_noise_has_its_standard_deviation_and_is_fixed_for_each_pair(vectors):
    plain, noisy = BatchLabels(vectors, OWNER, "max", CPU), BatchLabels(vectors, OWNER, "max", CPU, noise=0.05)
    batch = np.arange(0, 300, 3)
    gap = noisy(batch) - plain(batch)
    off = ~torch.eye(100, dtype=torch.bool)
    assert gap[off].std().item() == pytest.approx(0.05, rel=0.05)
    assert abs(gap[off].mean().item()) < 0.005
    turned = batch[::-1].copy()
    assert torch.equal(noisy(turned), noisy(batch).flip(0, 1))


def test_own_pairs_stay_one_and_labels_in_range(vectors):
    labels = BatchLabels(vectors, OWNER, "max", CPU, noise=2.0)(np.arange(12))
    same = torch.from_numpy(OWNER[:12][:, None] == OWNER[:12])
    assert (labels[same] == 1).all()
    assert labels.abs().max() <= 1


def test_no_noise_is_the_plain_label(vectors):
    batch = np.arange(0, 60, 2)
    plain, noisy = BatchLabels(vectors, OWNER, "mean", CPU), BatchLabels(vectors, OWNER, "mean", CPU, noise=0.0)
    assert torch.equal(plain(batch), noisy(batch))
