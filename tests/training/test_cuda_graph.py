"""Recorded steps give the same run, launched with one call a step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bcls.data.dataset import open_dataset
from bcls.training.batch_labels import BatchLabels
from bcls.training.config import TrainConfig
from bcls.training.cuda_graph import GraphedStep, graph_obstacle
from bcls.training.loader import IndexBatch
from bcls.training.optimization import reset_state, set_rate
from bcls.training.setup import set_up
from bcls.training.train import load_batches, make_step, seed_step, train
from tests.training.factories import TinyModel, make_data, settings

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def test_obstacles_to_recording():
    gpu = torch.device("cuda")
    assert graph_obstacle(TrainConfig(), gpu, 1) is None
    assert "one process" in graph_obstacle(TrainConfig(), gpu, 2)
    assert "accumulate" in graph_obstacle(TrainConfig(accumulate=2), gpu, 1)
    assert "--micro-batch" in graph_obstacle(TrainConfig(micro_batch=2), gpu, 1)
    assert "--streaming" in graph_obstacle(TrainConfig(streaming=True), gpu, 1)
    assert "--precision fp16" in graph_obstacle(TrainConfig(precision="fp16"), gpu, 1)


def test_a_cpu_is_refused_before_the_data_is_read(tmp_path):
    with pytest.raises(ValueError, match=r"`graph`: expected .*it needs a CUDA device; leave --graph out"):
        train(settings(tmp_path / "none", tmp_path / "run", graph=True), model=TinyModel())


MODELS = {
    "vsepp": {"name": "vsepp", "width": 16, "word_width": 8},
    "dual": {"name": "dual", "image": "features", "text": "gru", "width": 16},
    "unimodal": {"name": "dual", "image": "features", "text": "gru", "width": 16, "unimodal": 8},
    "saf": {"name": "saf", "width": 16, "word_width": 8, "similarity_width": 8, "regions": 4, "dropout": 0.0},
    "sgr": {"name": "sgr", "width": 16, "word_width": 8, "similarity_width": 8, "regions": 4, "dropout": 0.0},
}


@pytest.mark.cuda
@GPU
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("more", [{}, {"ema": 0.9}, {"precision": "bf16"}, {"clip": None, "optimizer": "adamw"}])
def test_recorded_steps_equal_ordinary_steps(name, more, tmp_path):
    """Without dropout, whose masks have the shape of the padding, steps agree to rounding."""
    data = make_data(tmp_path / "data", images=60, regions=MODELS[name].get("regions", 0))
    loss = {"name": "infonce", "learn_temperature": True}
    if name == "unimodal":
        more = {**more, "labels": "minilm", "unimodal_weight": 0.5}
    asked = settings(
        data, "", model=MODELS[name], loss=loss, device="cuda", word_threshold=1, val_split=None, lr=2e-4, **more
    )
    owner = open_dataset(data).split("train").image_of_caption
    vectors = np.random.default_rng(0).standard_normal((len(owner), 4))
    labels = BatchLabels(vectors, owner, "max", torch.device("cuda")) if name == "unimodal" else None
    seen = []
    for graph in (False, True):
        run = set_up(replace(asked, graph=graph), labels=labels)
        run.parallel.train()
        step = make_step(run, run.learner.loss)
        values = []
        for epoch in range(3):
            for number, parts in enumerate(load_batches(run, run.plan(epoch), epoch)):
                set_rate(run.learner.optimizer, 0.5**epoch)
                seed_step(1, epoch, number, 0)
                terms = step(parts)
                values.append({key: float(value) for key, value in terms.items()})
        state = {key: value.float().cpu().clone() for key, value in run.model.trained_state().items()}
        average = {} if run.learner.average is None else {k: v.cpu() for k, v in run.learner.average.state.items()}
        seen.append((values, state, average))
    (plain, weights, averages), (recorded, same_weights, same_averages) = seen
    assert len(plain) > 40
    # Rounding falls differently with the padding, and Adam makes a whole step of a gradient's changed sign: the first
    # steps agree to rounding, the losses of later ones roughly. In bf16 the gradient of such small models is rounded by
    # 10 % and more, so that its norm is not compared.
    near, step_size = (1e-1, 2e-3) if "precision" in more else (2e-3, 1e-3)
    left_out = {"gradient": 0.0} if "precision" in more else {}
    for one, other in zip(plain[:5], recorded[:5], strict=True):
        assert other | left_out == pytest.approx(one | left_out, rel=near, abs=1e-3)
    for one, other in zip(plain, recorded, strict=True):
        assert other["infonce"] == pytest.approx(one["infonce"], rel=near)
    for one, other in ((weights, same_weights), (averages, same_averages)):
        for key, value in one.items():
            torch.testing.assert_close(other[key], value, rtol=1e-2, atol=step_size)


@pytest.mark.cuda
@GPU
def test_recordings_share_the_memory_of_the_largest():
    weight = torch.nn.Parameter(torch.ones(1, device="cuda"))
    optimizer = torch.optim.Adam([weight], fused=True)

    def step(batch):
        """Needs 40 MB for each word."""
        (weight * torch.ones(batch.width, 10 << 20, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"weight": weight.detach() + batch.captions.sum()}

    def reserved(widths):
        torch.cuda.empty_cache()
        before, graphed = torch.cuda.memory_reserved(), GraphedStep(step, optimizer)
        for _ in range(6):
            for width in widths:
                graphed(IndexBatch(torch.arange(3, device="cuda"), width))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() - before

    assert reserved([2, 4, 3, 6]) <= 1.1 * reserved([6])


@pytest.mark.cuda
@GPU
def test_a_recorded_step_with_a_reset_optimizer_is_the_first_step():
    weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
    optimizer = torch.optim.Adam([weight], lr=0.1, fused=True)

    def step(batch):
        (weight.square() * batch.captions).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"weight": weight.detach().clone()}

    graphed = GraphedStep(step, optimizer)
    found = []
    for number in range(12):
        if number == 6:  # the first of each shape are not recorded
            reset_state(optimizer)
            weight.data.fill_(1)
        found.append(graphed(IndexBatch(torch.arange(1, 4, device="cuda"), 1))["weight"].clone())
    assert len(graphed._recorded) == 1
    torch.testing.assert_close(torch.stack(found[6:]), torch.stack(found[:6]))


class Reading(torch.nn.Module):
    """A loss that reads a value during the step."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, similarity, relevance, *, image_ids):
        assert float(similarity.detach().abs().max()) < torch.inf
        return self.loss(similarity, relevance, image_ids=image_ids)


@pytest.mark.cuda
@GPU
def test_a_step_that_cannot_be_recorded_runs_without_a_graph(tmp_path, capsys):
    data = make_data(tmp_path / "data", images=60)
    model = {**MODELS["vsepp"], "dropout_words": 0.2}
    asked = settings(data, "", model=model, device="cuda", word_threshold=1, val_split=None, graph=True)
    runs = [set_up(asked) for _ in range(3)]
    losses = [run.learner.loss for run in runs]
    steppers = [
        make_step(run, loss) for run, loss in zip(runs, (losses[0], Reading(losses[1]), losses[2]), strict=True)
    ]
    for epoch in range(2):
        for number, parts in enumerate(zip(*(load_batches(run, run.plan(epoch), epoch) for run in runs), strict=True)):
            for step, part in zip(steppers, parts, strict=True):
                seed_step(1, epoch, number, 0)
                step(part)
    assert capsys.readouterr().err.count("cannot be captured") == 1
    first, _, last = ({k: v.float().cpu() for k, v in run.model.trained_state().items()} for run in runs)
    for key, value in first.items():
        torch.testing.assert_close(last[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.cuda
@GPU
def test_a_recorded_run_learns(tmp_path):
    data = make_data(tmp_path / "data", images=60)
    asked = settings(
        data,
        tmp_path / "run",
        model={**MODELS["vsepp"], "dropout_words": 0.2},
        device="cuda",
        graph=True,
        epochs=20,
        word_threshold=1,
        warm_negatives=1,
        train_split="val",
    )
    result = train(asked)
    assert result.history[-1]["rsum"] > result.history[0]["rsum"] + 50
