"""Labels of a batch are those of :func:`bcls.labels.relevance`, whatever the precision around them."""

import shutil

import numpy as np
import pytest
import torch

from bcls.labels.caption_metrics import PairScorer
from bcls.labels.relevance import relevance
from bcls.training import batch_labels
from bcls.training.batch_labels import BatchLabels, CiderLabels

CPU = torch.device("cpu")
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
OWNER = np.array([0, 2, 1, 1, 0, 2, 2, 3, 1])


def vectors(dtype=np.float32):
    return np.random.default_rng(0).standard_normal((len(OWNER), 5)).astype(dtype)


def expected(embeddings, captions, aggregate):
    """From the labels of the whole dataset: the image of caption i in row i."""
    if aggregate == "paired":
        rows = relevance(embeddings[captions], embeddings[captions], np.arange(len(captions)), None, "paired")
    else:
        rows = relevance(embeddings, embeddings[captions], OWNER, None, aggregate)[OWNER[captions]]
    same = OWNER[captions][:, None] == OWNER[captions]
    return np.where(same, np.float32(1), rows)


@pytest.mark.parametrize("aggregate", ["max", "mean", "paired"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("captions", [[0, 1, 2, 7], [3], [4, 0, 5, 1], list(range(9))])
@pytest.mark.parametrize("held", [True, False])
def test_labels_equal_those_of_the_library(aggregate, dtype, captions, held, monkeypatch):
    monkeypatch.setattr(batch_labels, "fits_in_memory", lambda size, device: held)
    embeddings = vectors(dtype)
    captions = np.array(captions)
    made = BatchLabels(embeddings, OWNER, aggregate, CPU)(captions)
    assert made.dtype == torch.float32
    np.testing.assert_allclose(made.numpy(), expected(embeddings, captions, aggregate), atol=1e-6)


def test_pairs_of_one_image_are_exactly_one():
    made = BatchLabels(vectors(), OWNER, "mean", CPU)([0, 4, 2, 3, 8])
    same = torch.tensor(OWNER[[0, 4, 2, 3, 8]])
    assert (made[same[:, None] == same] == 1).all()
    assert made.min() >= -1


def test_labels_stay_float32_under_autocast():
    labels = BatchLabels(vectors(), OWNER, "max", CPU)
    plain = labels([0, 1, 2])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(labels([0, 1, 2]), plain)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_a_zero_embedding_is_reported(bad):
    embeddings = vectors()
    embeddings[3] = bad
    with pytest.raises(ValueError, match="caption 3"):
        BatchLabels(embeddings, OWNER, "max", CPU)


def test_embeddings_in_a_mapped_file_are_checked(monkeypatch):
    monkeypatch.setattr(batch_labels, "fits_in_memory", lambda size, device: False)
    embeddings = vectors()
    embeddings[7] = 0
    with pytest.raises(ValueError, match="caption 7"):
        BatchLabels(embeddings, OWNER, "max", CPU)
    monkeypatch.setattr(batch_labels, "_BLOCK", 2)
    with pytest.raises(ValueError, match="caption 7"):
        BatchLabels(embeddings, OWNER, "max", CPU)


def test_embeddings_are_checked_for_every_device():
    """Values are checked before they go to a device: "meta" stands for a GPU and holds no values."""
    embeddings = vectors()
    embeddings[3] = np.nan
    with pytest.raises(ValueError, match="caption 3"):
        BatchLabels(embeddings, OWNER, "max", torch.device("meta"))


def test_a_wrong_number_of_embeddings_is_refused():
    with pytest.raises(ValueError, match="9 rows"):
        BatchLabels(vectors()[:5], OWNER, "max", CPU)


@needs_java
def test_cider_labels_equal_the_scores_of_pairs():
    pytest.importorskip("pycocoevalcap", reason='needs pip install "bcls[caption-metrics]"')
    texts = ["A dog runs.", "Two cars", "a man, a man", "Two dogs run", "a dog", "cars", "A man runs.", "a", "man"]
    captions = np.array([4, 1, 2, 7])
    labels = CiderLabels(texts, OWNER, CPU)
    made = labels(torch.from_numpy(captions))
    scores = PairScorer("cider").pair_scores(texts, OWNER, np.repeat(OWNER[captions], 4), np.tile(captions, 4))
    assert made.dtype == torch.float32
    assert not labels.on_device
    np.testing.assert_allclose(made.numpy(), scores.reshape(4, 4), atol=1e-5)
