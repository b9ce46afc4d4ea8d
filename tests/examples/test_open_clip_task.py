"""The task in open_clip's training loop: with ``open_clip.task`` if it is installed, otherwise with the stand-in."""

import importlib
import sys
from types import ModuleType

import pytest
import torch
from torch.nn import functional

from bcls.losses import BCLSLoss
from tests.examples import open_clip_stand_in


@pytest.fixture
def module(example, monkeypatch):
    try:
        importlib.import_module("open_clip.task")
    except ImportError:
        package = ModuleType("open_clip")
        package.task = open_clip_stand_in
        monkeypatch.setitem(sys.modules, "open_clip", package)
        monkeypatch.setitem(sys.modules, "open_clip.task", open_clip_stand_in)
    return example("open_clip_task")


def batch(pairs=9):
    generator = torch.Generator().manual_seed(2)
    image, text, vectors = (torch.randn(pairs, width, generator=generator) for width in (5, 3, 6))
    ids = torch.tensor([4, 4, 1, 2, 3, 0, 5, 6, 1])
    return {"image": image, "text": text, "caption_vector": vectors, "image_id": ids}


def step(task, inputs):
    """One step of ``train_one_epoch``, without precision and logging."""
    optimizer = torch.optim.SGD(task.trainable_module.parameters(), lr=0.1)
    task.train()
    inputs = task.prepare_batch(inputs, device=torch.device("cpu"), input_dtype=None)
    optimizer.zero_grad()
    losses, report = task(inputs)
    losses["loss"].backward()
    optimizer.step()
    task.clamp_logit_scale()
    return losses, report


def test_a_step_is_the_loss_of_the_library(module):
    torch.manual_seed(0)
    model, inputs = module.LinearClip(5, 3, 4), batch()
    codes = model(inputs["image"], inputs["text"])
    vectors = functional.normalize(inputs["caption_vector"], dim=1)
    ids = inputs["image_id"]
    labels = torch.where(ids[:, None] == ids, 1.0, vectors @ vectors.T)
    expected = BCLSLoss()(codes["image_features"] @ codes["text_features"].T, labels, image_ids=ids)
    before = model.visual.weight.clone()
    losses, report = step(module.BCLSTask(model), inputs)
    assert sorted(losses) == ["binary_loss", "continuous_loss", "loss"]
    torch.testing.assert_close(losses["loss"], expected)
    assert list(report) == ["logit_scale"]
    assert not torch.equal(model.visual.weight, before)


def test_half_precision_inputs_keep_float32_labels(module):
    task, inputs = module.BCLSTask(module.LinearClip(5, 3, 4).bfloat16()), batch()
    inputs = task.prepare_batch(inputs, device=torch.device("cpu"), input_dtype=torch.bfloat16)
    losses, _ = task.train()(inputs)
    assert losses["loss"].dtype == torch.float32
    assert losses["loss"].isfinite()


def test_a_teacher_needs_no_class(module):
    from open_clip.task import DistillCLIPTask

    torch.manual_seed(0)
    student, teacher = module.LinearClip(5, 3, 4), module.LinearClip(5, 3, 7)
    inputs = {key: rows for key, rows in batch().items() if key in {"image", "text"}}
    vectors = teacher(**inputs)["text_features"]
    codes = student(**inputs)
    expected = BCLSLoss()(
        codes["image_features"] @ codes["text_features"].T, (vectors @ vectors.T).clamp(-1, 1).fill_diagonal_(1)
    )
    losses, report = step(DistillCLIPTask(student, teacher, loss=module.BCLSClipLoss()), inputs)
    torch.testing.assert_close(losses["loss"], expected)
    assert list(report) == ["logit_scale"]
    assert all(weights.grad is None for weights in teacher.parameters())


def test_linear_towers_learn(module):
    metrics = module.main()
    assert metrics["after"] > 3 * metrics["before"]
