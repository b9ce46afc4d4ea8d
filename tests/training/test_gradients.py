"""Micro batches and the streaming loss give the loss and the gradients of the whole batch."""

import signal
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from bcls.losses import from_name
from bcls.models import build
from bcls.models.layers import Padded
from bcls.training.batch_labels import BatchLabels
from bcls.training.estimate import estimate
from bcls.training.gradients import accumulate_gradients, encode_in_parts, spread_of_products
from bcls.training.optimization import make_streaming_loss
from bcls.training.setup import set_up
from bcls.training.train import seed_step, train
from tests.models.factories import bert
from tests.training.distributed_job import make
from tests.training.factories import WIDTH, TinyModel, WordModel, settings
from tests.training.test_resume import Stopping, contents

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Settings of a dual model whose text encoder, a small BERT, is trained."""
    pytest.importorskip("transformers", reason='needs pip install "bcls[text]"')
    folder = bert(tmp_path_factory.mktemp("bert") / "bert")
    return {"name": "dual", "image": "features", "features": WIDTH, "text": str(folder), "tune_text": True, "width": 8}


def model_of(name, tuned):
    if name != "tuned":
        return make(name)
    torch.manual_seed(3)
    return build(tuned)


def gradients(data, model, loss="bcls", *, training=False, aggregate="max", streaming=False, **changes):
    """Values of one step and the gradients of all parameters, with labels from random embeddings."""
    start = {"name": "infonce", "learn_temperature": True} if loss == "infonce" else {"name": "triplet-sn"}
    run = set_up(settings(data, "", batch=7, val_split=None, loss=start, **changes), model)
    criterion = run.learner.loss if loss == "infonce" else from_name(loss)
    if streaming:
        criterion = make_streaming_loss({"name": loss})
    device, owner = run.accelerator.device, run.train.image_of_caption
    vectors = np.random.default_rng(0).standard_normal((len(owner), 4))
    labels = BatchLabels(vectors, owner, aggregate, device)
    loader = replace(run.loader, labels=labels, streaming=streaming)
    run.parallel.train(training)
    if run.accelerator.scaler is not None:  # its usual scale is close to the largest number of float16
        run.accelerator.scaler = torch.amp.GradScaler(init_scale=16.0)
    seed_step(1, 2, 3)
    values = accumulate_gradients(run, criterion, list(loader.batches(run.plan(0)[0], 0)))
    named = {**dict(run.model.named_parameters()), **dict(criterion.named_parameters())}
    found = {name: one.grad.clone() for name, one in named.items() if one.requires_grad}
    run.model.zero_grad()
    run.close()
    return values, found


def assert_equal(one, other, tolerance=1e-5):
    for first, second in zip(one, other, strict=True):
        assert first.keys() == second.keys()
        scale = max(float(value.abs().max()) for value in first.values())
        for name in first:
            torch.testing.assert_close(
                second[name],
                first[name],
                rtol=tolerance,
                atol=tolerance * scale,
                msg=lambda text, n=name: f"{n}: {text}",
            )


@pytest.mark.parametrize("size", [1, 3, 7, 100])
@pytest.mark.parametrize(("name", "loss"), [("vsepp", "bcls"), ("dual", "infonce"), ("tuned", "bcls")])
def test_micro_batches_give_the_loss_and_gradients_of_the_batch(data, tuned, name, loss, size):
    model = model_of(name, tuned)
    whole = gradients(data, model, loss)
    assert max(float(value.abs().max()) for value in whole[1].values()) > 1e-3
    assert_equal(whole, gradients(data, model, loss, micro_batch=size))


class Halves(torch.autograd.Function):
    """Two halves of a number; notes whether both get the same tensor as their gradient."""

    passed: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx, number):
        return number / 2, number / 2

    @staticmethod
    def backward(ctx, first, second):
        Halves.passed.append(first is second)
        return (first + second) / 2


def test_the_terms_of_a_loss_get_the_same_gradient(data, monkeypatch):
    """The fused BCLS loss then multiplies its stored gradient; with two tensors its kernels would run again."""

    def terms(self, similarity, relevance, *, image_ids):
        return dict(zip(("binary", "continuous"), Halves.apply(similarity.square().mean()), strict=True))

    monkeypatch.setattr("bcls.losses.BCLSLoss.terms", terms)
    values, _ = gradients(data, make("vsepp"))
    assert Halves.passed == [True]
    assert set(values) == {"binary", "continuous", "spread"}


def test_accumulated_batches_are_averaged(data):
    model = make("vsepp")
    assert_equal(gradients(data, model, accumulate=2), gradients(data, model, accumulate=2, micro_batch=3))


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_micro_batches_in_mixed_precision(data, precision):
    model = make("vsepp")
    whole = gradients(data, model, precision=precision)
    assert_equal(whole, gradients(data, model, precision=precision, micro_batch=3), 1e-5 if precision == "no" else 2e-2)


@pytest.mark.cuda
@GPU
@pytest.mark.parametrize(("precision", "tolerance"), [("no", 1e-5), ("bf16", 2e-2), ("fp16", 2e-3)])
def test_micro_batches_on_a_gpu(data, precision, tolerance):
    model = make("vsepp")
    # cudnn has a backward pass of recurrent networks in training mode only; the model has no dropout
    run = partial(gradients, data, model, precision=precision, device="cuda", training=True)
    assert_equal(run(), run(micro_batch=3), tolerance)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, GPU])])
def test_both_passes_draw_the_same_dropout(device):
    torch.manual_seed(0)
    model = TinyModel(dropout=0.5).to(device)
    drawn = []

    def encode(images, texts):
        drawn.append(torch.rand(2, device=device).tolist())
        return model(images, texts)

    images = Padded(torch.randn(7, WIDTH, device=device))
    texts = Padded(torch.randint(1, 9, (7, 4), device=device), torch.full((7,), 4, device=device))
    codes = encode_in_parts(encode, images, texts, 3)
    before = torch.rand(2, device=device)  # what a loss draws
    after = torch.get_rng_state()
    sum(side.values.square().sum() for side in codes).backward()
    assert drawn[3:] == drawn[2::-1]  # the last micro batch is the first to be encoded again
    assert torch.equal(torch.get_rng_state(), after)
    assert not torch.equal(torch.rand(2, device=device), before)


def test_double_precision_is_exact():
    torch.manual_seed(0)
    model = TinyModel().double()
    images = Padded(torch.randn(7, WIDTH, dtype=torch.float64))
    texts = Padded(torch.randint(1, 9, (7, 4)), torch.tensor([4, 2, 3, 1, 4, 2, 4]))
    loss, found = from_name("infonce"), []
    for codes in (model(images, texts), encode_in_parts(model, images, texts, 2)):
        loss(model.scores(*codes)).backward()
        found.append([one.grad for one in model.parameters()])
        model.zero_grad()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-14)


def test_a_frozen_side_needs_no_gradient():
    model = TinyModel()
    model.image.requires_grad_(False)
    images, texts = Padded(torch.randn(5, WIDTH)), Padded(torch.ones(5, 2, dtype=torch.long), torch.full((5,), 2))
    model.scores(*encode_in_parts(model, images, texts, 2)).sum().backward()
    assert model.image.weight.grad is None
    assert model.words.weight.grad is not None


def test_dropout_with_micro_batches_is_reproducible(data, tuned):
    model = model_of("tuned", tuned)
    one, other = (gradients(data, model, training=True, micro_batch=3)[1] for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_with_dropout_equal_those_of_kept_activations(data, tuned, precision, checkpointing, monkeypatch):
    def run(**changes):
        model = model_of("tuned", {**tuned, **changes})
        return gradients(data, model, training=True, micro_batch=3, precision=precision)

    found = run(checkpointing=checkpointing)
    monkeypatch.setattr("bcls.training.gradients.checkpoint", lambda encode, *inputs, use_reentrant: encode(*inputs))
    kept = run()
    assert max(float(value.abs().max()) for value in kept[1].values()) > 1e-3
    assert_equal(kept, found, 1e-5 if precision == "no" else 2e-2)


def test_a_resumed_run_with_micro_batches_equals_an_uninterrupted_one(data, tmp_path):
    changes = {"micro_batch": 3, "epochs": 2, "accumulate": 2}
    train(settings(data, tmp_path / "whole", **changes), model=Stopping())
    with pytest.raises(KeyboardInterrupt):
        train(settings(data, tmp_path / "run", **changes), model=Stopping(20, signal.SIGINT))
    train(settings(data, tmp_path / "run", **changes, resume=True), model=Stopping())
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    with pytest.raises(ValueError, match="micro_batch: 3 before, 4 now"):
        train(settings(data, tmp_path / "run", **{**changes, "micro_batch": 4}, resume=True), model=Stopping())


class Normed(TinyModel):
    def __init__(self, *, frozen):
        super().__init__()
        self.norm, self.frozen_norm = nn.BatchNorm1d(WIDTH), frozen

    def train(self, mode=True):
        super().train(mode)
        if self.frozen_norm:
            self.norm.eval()
        return self

    def image_codes(self, images):
        return super().image_codes(Padded(self.norm(images.values)))


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (
            WordModel,
            {"micro_batch": 4},
            r"`micro_batch`: expected a model with one vector an item.*WordModel",
        ),
        (
            WordModel,
            {"streaming": True},
            r"`streaming`: expected a model with one vector.*need the regions and",
        ),
        (lambda: make("sgr"), {"micro_batch": 4}, r"`micro_batch`: expected .*whose scores need"),
        (
            lambda: Normed(frozen=False),
            {"micro_batch": 4},
            r"`micro_batch`: expected .*1 batch norms such as norm",
        ),
        (TinyModel, {"micro_batch": -1}, "`micro_batch`: expected"),
        (TinyModel, {"streaming": True, "aggregate": "mean"}, "`aggregate`: expected max or paired with --streaming"),
        (TinyModel, {"streaming": True, "warm_negatives": 1}, "`warm_negatives`: expected 0 with --streaming"),
        (
            TinyModel,
            {"streaming": True, "loss": {"name": "infonce"}},
            "`streaming`: expected the loss 'bcls', got",
        ),
        (TinyModel, {"streaming": True, "loss": {"name": "bcls", "beta": 0}}, r"`loss\.beta`: expected"),
    ],
)
def test_refusals(data, tmp_path, model, changes, message):
    if changes.get("streaming"):
        changes = {"loss": {"name": "bcls"}, "labels": "wordllama", **changes}
    with pytest.raises(ValueError, match=message):
        train(settings(data, tmp_path / "run", **changes), model=model())


def test_labels_of_ones_own_are_refused_with_streaming(data, tmp_path):
    labels = BatchLabels(np.eye(3), np.arange(3), "max", torch.device("cpu"))
    config = settings(data, tmp_path / "run", loss={"name": "bcls"}, labels="wordllama", streaming=True)
    with pytest.raises(ValueError, match="`labels`: expected those of the settings, with `streaming`"):
        train(config, model=TinyModel(), labels=labels)


def test_a_frozen_batch_norm_is_allowed(data, tmp_path):
    assert train(settings(data, tmp_path / "run", epochs=1, micro_batch=3), model=Normed(frozen=True)).epochs == 1


@pytest.mark.parametrize("micro", [0, 3])
@pytest.mark.parametrize("aggregate", ["max", "paired"])
def test_the_streaming_loss_gives_the_gradients_of_the_matrix(data, aggregate, micro):
    model = make("vsepp")
    expected = gradients(data, model, aggregate=aggregate)
    found = gradients(data, model, aggregate=aggregate, streaming=True, micro_batch=micro)
    assert found[0].keys() == {"binary", "continuous", "spread"}
    assert_equal(expected, found)


def test_streaming_runs_from_the_command_line(data, tmp_path):
    pytest.importorskip("wordllama", reason='needs pip install "bcls[text]"')
    from bcls.cli.train import main

    flags = [
        "--data",
        str(data),
        "--features",
        "made",
        "--labels",
        "wordllama",
        "--loss.name",
        "bcls",
        "--device",
        "cpu",
    ]
    flags += ["--model.name", "vsepp", "--model.width", "8", "--model.word_width", "4", "--word-threshold", "1"]
    flags += ["--batch", "8", "--epochs", "1", "--device", "cpu"]
    for name, more in (("plain", []), ("large", ["--streaming", "--micro-batch", "3"])):
        assert main([*flags, "--out", str(tmp_path / name), *more]) == 0
    plain, large = (contents(tmp_path / name)[1] for name in ("plain", "large"))
    for one, other in zip(plain, large, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - {"kind"}:
            assert other[key] == pytest.approx(one[key], rel=1e-3, abs=1e-4), key


def test_the_spread_is_that_of_the_matrix():
    draw = torch.Generator().manual_seed(0)
    images, texts = (1 + 1e-3 * torch.randn(40, 8, generator=draw) for _ in range(2))
    expected = (images.double() @ texts.double().T).std()
    torch.testing.assert_close(spread_of_products(images, texts).double(), expected, rtol=1e-4, atol=0)
    assert spread_of_products(torch.ones(3, 2), torch.ones(3, 2)) == 0


def test_the_estimate_counts_a_micro_batch(data):
    plain = settings(data, "", batch=512, word_threshold=1, model={"name": "vsepp"})
    whole, micro = (estimate(replace(plain, micro_batch=size))["step_bytes"] for size in (0, 16))
    assert micro < whole / 4
