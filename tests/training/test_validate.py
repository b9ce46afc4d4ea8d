"""The loss on the validation split: the mean over batches like those of training, of the model without dropout."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bcls.labels import relevance
from bcls.losses import BCLSLoss, TripletHardLoss
from bcls.training.batch_labels import BatchLabels
from bcls.training.metrics_log import read_metrics
from bcls.training.setup import set_up, validate
from bcls.training.train import train
from tests.training.factories import TinyModel, settings


@pytest.fixture
def run(data, tmp_path):
    run = set_up(settings(data, tmp_path / "run", batch=4), TinyModel(dropout=0.5))
    yield run
    run.close()


def by_hand(state, split, loss):
    """From the matrices of the whole split, pair by pair."""
    similarity = state.model.similarity(split.images, split.texts)
    values = []
    for captions in split.batches:
        images = [int(split.image_of_caption[caption]) for caption in captions]
        scores = torch.tensor([[float(similarity[i, c]) for c in captions] for i in images])
        labels = None
        if split.labels is not None:
            labels = torch.tensor([[float(split.labels[i, c]) for c in captions] for i in images])
        values.append(float(loss(scores, labels, image_ids=torch.tensor(images))))
    return np.mean(values)


def test_every_caption_is_used_once_in_batches_of_distinct_images(run):
    split = run.validation
    assert sorted(np.concatenate(split.batches)) == list(range(len(split.image_of_caption)))
    for captions in split.batches:
        assert 2 <= len(captions) <= 4
        assert len(set(split.image_of_caption[captions])) == len(captions)


def test_the_validation_loss_is_the_mean_over_batches(run):
    split, loss = run.validation, TripletHardLoss()
    run.model.train()
    assert validate(run.model, split, loss)["loss"] == pytest.approx(by_hand(run, split, loss), rel=1e-5)


@pytest.mark.parametrize("aggregate", ["max", "mean"])
def test_the_validation_loss_uses_the_labels_of_the_pairs(run, aggregate):
    split = run.validation
    owner = split.image_of_caption
    vectors = np.random.default_rng(0).standard_normal((len(owner), 5))
    labels = BatchLabels(vectors, owner, aggregate, torch.device("cpu"))
    split = replace(split, labels=relevance(vectors, vectors, owner, owner, aggregate), batch_labels=labels)
    loss = BCLSLoss(alpha=0.1, beta=0.2, weight=3.0)
    assert validate(run.model, split, loss)["loss"] == pytest.approx(by_hand(run, split, loss), rel=1e-5)


@pytest.mark.usefixtures("charts")
def test_the_validation_loss_is_logged_and_its_batches_do_not_depend_on_the_seed(data, tmp_path):
    result = train(settings(data, tmp_path / "run", epochs=2), model=TinyModel())
    lines = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "validation"]
    assert [line["loss"] for line in lines] == [one["loss"] for one in result.history]
    assert lines[0]["loss"] != lines[1]["loss"] > 0
    assert "Validation loss" in (tmp_path / "run" / "report.html").read_text()
    runs = [set_up(settings(data, tmp_path / "other", seed=seed), TinyModel()) for seed in (1, 2)]
    first, second = (run.validation.batches for run in runs)
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    for run in runs:
        run.close()
