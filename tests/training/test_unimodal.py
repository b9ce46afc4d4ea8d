"""Training with the loss between items of one modality: its labels, its term, resuming, and wrong settings."""

import json
from threading import Event

import numpy as np
import pytest
import torch

from bcls.training.batch_labels import BatchLabels
from bcls.training.config import check_config
from bcls.training.estimate import estimate
from bcls.training.setup import set_up
from bcls.training.train import train
from tests.reference import unimodal as reference
from tests.training.factories import TinyModel, make_data, settings

CPU = torch.device("cpu")
OWNER = np.array([0, 2, 1, 1, 0, 2, 2, 3, 1])
MODEL = {"name": "dual", "image": "features", "text": "gru", "width": 8, "word_width": 4, "states": 8, "unimodal": 5}
CHANGES = {"labels": "wordllama", "model": MODEL, "word_threshold": 1, "unimodal_weight": 0.5}


@pytest.mark.parametrize("aggregate", ["max", "mean", "paired"])
@pytest.mark.parametrize("captions", [[0, 1, 2, 7], [4, 0, 5, 1], list(range(9))])
def test_similarities_equal_the_transcription(aggregate, captions):
    embeddings = np.random.default_rng(0).standard_normal((len(OWNER), 5))
    made = BatchLabels(embeddings, OWNER, aggregate, CPU).unimodal(captions)
    for one, other in zip(made, reference.similarities(embeddings, OWNER, captions, aggregate), strict=True):
        assert one.dtype == torch.float32
        np.testing.assert_allclose(one.numpy(), other, atol=1e-6)
    assert (made[0].numpy()[OWNER[captions][:, None] == OWNER[captions]] == 1).all()


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A dataset whose captions can be embedded; the embeddings are kept in its folder."""
    pytest.importorskip("wordllama", reason='needs pip install "bcls[text]"')
    return make_data(tmp_path_factory.mktemp("unimodal") / "data")


def steps(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "step"]


@pytest.mark.parametrize("more", [{}, {"precision": "bf16"}, {"distinct": False, "warm_negatives": 1}])
def test_training_lowers_the_term(labelled, tmp_path, more):
    train(settings(labelled, tmp_path / "run", **CHANGES, **more, epochs=15, drops=[12]))
    lines = steps(tmp_path / "run")
    assert lines[-1]["unimodal"] < 0.7 * lines[0]["unimodal"]
    terms = lines[-1].keys() - {"kind", "epoch", "step", "loss", "lr", "seconds", "spread", "gradient"}
    assert "unimodal" in terms
    assert lines[-1]["loss"] == pytest.approx(sum(lines[-1][name] for name in terms))


def test_the_term_is_weighted(labelled, tmp_path):
    first = []
    for weight in (0.5, 1.0):
        train(settings(labelled, tmp_path / f"run-{weight}", **{**CHANGES, "unimodal_weight": weight}, log_every=1))
        first.append(steps(tmp_path / f"run-{weight}")[0]["unimodal"])
    assert first[1] == pytest.approx(2 * first[0])


def test_a_resumed_run_ends_as_one_that_was_not_stopped(labelled, tmp_path):
    changes = {**CHANGES, "ema": 0.9, "accumulate": 2, "epochs": 3, "save_every": 1}
    train(settings(labelled, tmp_path / "whole", **changes))
    stop = Event()
    stop.set()  # after each step
    resume = False
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(settings(labelled, tmp_path / "stopped", **changes, resume=resume), stop=stop)
        resume = True
    train(settings(labelled, tmp_path / "stopped", **changes, resume=True))
    for name in ("last/model", "last/training", "best/model"):
        one, two = (
            (tmp_path / run / "checkpoints" / f"{name}.safetensors").read_bytes() for run in ("whole", "stopped")
        )
        assert one == two
    one, two = ([{**line, "seconds": 0} for line in steps(tmp_path / run)] for run in ("whole", "stopped"))
    assert one == two


def test_a_dry_run_needs_no_labels(labelled):
    with_heads = estimate(settings(labelled, "", **CHANGES))
    without = estimate(settings(labelled, "", **{**CHANGES, "model": {**MODEL, "unimodal": 0}, "unimodal_weight": 0.0}))
    assert with_heads["trained"] == without["trained"] + 2 * (8 * 5 + 5) + 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": "none"}, r"`labels`: expected a text encoder: `unimodal_weight` learns .*, got none; use minilm"),
        ({"unimodal_weight": -1.0}, "`unimodal_weight`: expected"),
        ({"unimodal_weight": 0.0}, r"`model.unimodal`: expected a weight .*, got unimodal_weight: 0; set --unimodal"),
        ({"model": {**MODEL, "unimodal": 0}}, r"`unimodal_weight`: expected a model with second heads, got DualModel"),
        ({"model": {"name": "vsepp", "width": 8}}, r"second heads, got VseppModel without them; use the model dual"),
        ({"model": {"name": "vsepp", "unimodal": 8}}, r"`model.unimodal`"),
    ],
)
def test_settings_that_do_not_go_together_are_reported(labelled, changes, message):
    with pytest.raises(ValueError, match=message):
        set_up(check_config(settings(labelled, "", **{**CHANGES, **changes})))


def test_a_model_of_ones_own_has_no_second_heads(labelled):
    with pytest.raises(ValueError, match="got TinyModel without them"):
        set_up(settings(labelled, "", **CHANGES), TinyModel())
