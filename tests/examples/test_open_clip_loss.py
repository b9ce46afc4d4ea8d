import inspect
import socket

import pytest
import torch
from torch.nn import functional

from bcls.labels.relevance import relevance
from bcls.losses import BCLSLoss, TripletLoss
from tests.examples.conftest import EXAMPLES

#: What open_clip 3.3 calls ``ClipLoss.forward`` with.
THEIRS = ["image_features", "text_features", "logit_scale", "logit_bias", "output_dict"]


@pytest.fixture
def module(example):
    return example("open_clip_loss")


def features(seed=0, pairs=6):
    generator = torch.Generator().manual_seed(seed)
    images, texts = (
        functional.normalize(torch.randn(pairs, 8, generator=generator), dim=1).requires_grad_() for _ in "it"
    )
    return images, texts, torch.randn(pairs, 5, generator=generator)


def labels_of(vectors, ids):
    """Cosines of the captions, by another road; ids in the order of their first rows."""
    paired = relevance(vectors, vectors, range(len(vectors)), aggregate="paired")
    return torch.where(ids[:, None] == ids, 1.0, paired)


def test_the_call_is_that_of_clip_loss(module):
    parameters = list(inspect.signature(module.BCLSClipLoss.forward).parameters.values())[1:]
    assert [parameter.name for parameter in parameters[:5]] == THEIRS
    assert [parameter.default for parameter in parameters[3:5]] == [None, False]
    assert all(parameter.default is None for parameter in parameters[5:-1])
    assert parameters[-1].kind is inspect.Parameter.VAR_KEYWORD


def test_value_and_terms_are_those_of_the_library(module):
    images, texts, vectors = features()
    ids = torch.tensor([4, 4, 1, 2, 3, 0])
    scale = torch.tensor(14.0, requires_grad=True)
    loss = module.BCLSClipLoss()
    value = loss(images, texts, scale, dist_text_features=vectors, image_ids=ids)
    expected = BCLSLoss()(images @ texts.T, labels_of(vectors, ids), image_ids=ids)
    torch.testing.assert_close(value, expected)
    terms = loss(images, texts, scale, None, True, vectors, ids)
    assert sorted(terms) == ["binary_loss", "continuous_loss"]
    torch.testing.assert_close(sum(terms.values()), expected)
    # Without ids every row is an image of its own.
    own = torch.arange(6)
    alone = loss(images, texts, scale, dist_text_features=vectors)
    torch.testing.assert_close(alone, BCLSLoss()(images @ texts.T, labels_of(vectors, own), image_ids=own))


def test_without_a_teacher_it_says_what_is_missing(module):
    images, texts, _ = features()
    with pytest.raises(ValueError, match="`relevance`"):
        module.BCLSClipLoss()(images, texts, torch.tensor(1.0))


def step(model, teacher, loss, images, texts):
    """open_clip's training step with ``--distill-model``, less precision and logging."""
    model_out = model(images, texts)
    with torch.no_grad():
        dist_model_out = teacher(images, texts)
    model_out.update({f"dist_{name}": value for name, value in dist_model_out.items()})
    losses = loss(**model_out, output_dict=True)
    total_loss = sum(losses.values())
    losses["loss"] = total_loss
    total_loss.backward()
    return losses


class Clip(torch.nn.Module):
    def __init__(self, seed, bias):
        super().__init__()
        torch.manual_seed(seed)
        self.visual, self.text = torch.nn.Linear(5, 4), torch.nn.Linear(3, 4)
        self.logit_scale = torch.nn.Parameter(torch.tensor(2.7))
        self.logit_bias = torch.nn.Parameter(torch.tensor(-10.0)) if bias else None

    def forward(self, images, texts):
        made = {
            "image_features": functional.normalize(self.visual(images), dim=1),
            "text_features": functional.normalize(self.text(texts), dim=1),
            "logit_scale": self.logit_scale.exp(),
        }
        return made if self.logit_bias is None else made | {"logit_bias": self.logit_bias}


@pytest.mark.parametrize("bias", [False, True])
def test_open_clips_step_takes_it_as_it_is(module, bias):
    model, teacher = Clip(0, bias), Clip(1, bias)
    generator = torch.Generator().manual_seed(2)
    losses = step(model, teacher, module.BCLSClipLoss(), *(torch.randn(9, n, generator=generator) for n in (5, 3)))
    assert sorted(losses) == ["binary_loss", "continuous_loss", "loss"]
    # Scale and bias take part with a gradient of zero: without one, DistributedDataParallel stops.
    assert model.logit_scale.grad == 0
    assert all(weights.grad is not None for weights in model.parameters())
    assert model.visual.weight.grad.abs().sum() > 0
    assert model.text.weight.grad.abs().sum() > 0


def test_linear_towers_learn(module):
    metrics = module.main()
    assert metrics["after"] > 3 * metrics["before"]


def share(rank, port, results):
    """One of two processes with half of the batch each."""
    import sys

    import torch.distributed as dist

    sys.path.insert(0, str(EXAMPLES))
    from open_clip_loss import BCLSClipLoss

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    images, texts, vectors = features()
    half = slice(3 * rank, 3 * rank + 3)
    images, texts = (rows[half].detach().requires_grad_() for rows in (images, texts))
    ids = torch.tensor([4, 4, 1, 4, 3, 0])[half]
    loss = BCLSClipLoss(world_size=2)
    value = loss(images, texts, torch.tensor(1.0), dist_text_features=vectors[half], image_ids=ids)
    value.backward()
    results[rank] = (value.item(), images.grad / 2, texts.grad / 2)  # the mean that DistributedDataParallel takes
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(module):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = torch.multiprocessing.Manager().dict()
    torch.multiprocessing.spawn(share, (port, results), nprocs=2)
    images, texts, vectors = features()
    ids = torch.tensor([4, 4, 1, 4, 3, 0])
    whole = module.BCLSClipLoss()(images, texts, torch.tensor(1.0), dist_text_features=vectors, image_ids=ids)
    whole.backward()
    for rank in range(2):
        value, image_slope, text_slope = results[rank]
        assert value == pytest.approx(whole.item())
        half = slice(3 * rank, 3 * rank + 3)
        torch.testing.assert_close(image_slope, images.grad[half])
        torch.testing.assert_close(text_slope, texts.grad[half])


def test_ids_are_gathered_without_labels_too(module, monkeypatch):
    images, texts, _ = features()
    halves = {3: [slice(0, 3), slice(3, 6)]}
    ids = torch.tensor([4, 4, 1, 4, 3, 0])
    whole = {id(rows): rows for rows in (images, texts, ids)}
    parts = {}
    monkeypatch.setattr(module, "all_gather", lambda rows: [parts[id(rows)][half] for half in halves[len(rows)]])
    first = [rows[:3].contiguous() for rows in whole.values()]
    parts.update(zip(map(id, first), whole.values(), strict=True))
    loss = module.BCLSClipLoss(TripletLoss(), world_size=2)
    value = loss(first[0], first[1], torch.tensor(1.0), image_ids=first[2])
    torch.testing.assert_close(value, TripletLoss()(images @ texts.T, image_ids=ids))
