"""BCLS from embeddings equals BCLS on the matrix."""

import subprocess
import sys

import pytest
import torch

from bcls.labels.relevance import relevance as make_relevance
from bcls.losses import BCLSLoss, StreamingBCLSLoss
from tests.losses.factories import assert_same, embeddings, ids_of, plain, step


def loss_of(**inputs):
    """A function of the embeddings of images and texts."""
    step = inputs.pop("step", None)
    return lambda a, b: StreamingBCLSLoss(weight=2.0, lse="mean", step=step)(a, b, **inputs)


def label_matrix(captions, ids=None):
    labels = (captions @ captions.T).clamp(-1, 1).fill_diagonal_(1)
    return labels if ids is None else labels.masked_fill(ids[:, None] == ids, 1)


@pytest.mark.parametrize("size", [1, 2, 37])
@pytest.mark.parametrize("rows", [None, 1, 10, 100])
@pytest.mark.parametrize("with_ids", [False, True])
def test_equals_the_plain_loss(size, rows, with_ids):
    images, texts, captions = embeddings(size)
    ids = ids_of(size) if with_ids else None
    labels = label_matrix(captions, ids)
    reference = plain(BCLSLoss(weight=2.0, lse="mean"))
    assert_same(
        step(loss_of(captions=captions, image_ids=ids, step=rows), images, texts),
        step(lambda a, b: reference(a @ b.T, labels, image_ids=ids), images, texts),
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    "arguments", [{}, {"alpha": 0.1, "beta": 0.05, "gamma": 20.0, "margin": 0.1, "weight": 3.0, "lse": "mean"}]
)
def test_the_class_equals_the_loss_on_the_matrix(arguments, reduction):
    images, texts, captions = embeddings(23)
    ids, labels = ids_of(23), label_matrix(captions, ids_of(23))
    streaming, matrix = (kind(**arguments, reduction=reduction) for kind in (StreamingBCLSLoss, BCLSLoss))
    assert_same(
        step(lambda a, b: streaming(a, b, captions, image_ids=ids), images, texts),
        step(lambda a, b: plain(matrix)(a @ b.T, labels, image_ids=ids), images, texts),
    )
    terms = streaming.terms(images, texts, captions, image_ids=ids)
    expected = plain(matrix.terms)(images @ texts.T, labels, image_ids=ids)
    assert list(terms) == list(expected)
    assert_same(terms.values(), expected.values())
    torch.testing.assert_close(sum(terms.values()), streaming(images, texts, captions, image_ids=ids))


def test_the_class_shows_its_settings():
    assert repr(StreamingBCLSLoss(weight=2, lse="mean")) == (
        "StreamingBCLSLoss(alpha=0.2, beta=0.1, gamma=50.0, margin=0.2, weight=2.0, lse='mean', reduction='mean')"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"alpha": 2.0},
        {"beta": 0},
        {"gamma": 0},
        {"margin": -1},
        {"weight": -1},
        {"lse": "max"},
        {"reduction": "none"},
        {"step": 0},
    ],
)
def test_bad_arguments_of_the_class_are_named(arguments):
    with pytest.raises(ValueError, match=f"^`{next(iter(arguments))}`"):
        StreamingBCLSLoss(**arguments)


def test_labels_are_the_best_of_an_images_references():
    images, texts, captions = embeddings(18)
    _, _, more = embeddings(30, seed=1)
    references = torch.cat((more, captions))
    owner = torch.cat((torch.arange(30) * 7 % 11, torch.arange(18)))  # from one to four an image
    labels = make_relevance(references.numpy(), captions.numpy(), owner.numpy(), torch.arange(18).numpy())
    labels = torch.as_tensor(labels)
    inputs = {"captions": captions, "references": references, "reference_image": owner}
    reference = plain(BCLSLoss(weight=2.0, lse="mean"))
    for rows in (None, 5):
        ours = step(loss_of(step=rows, **inputs), images, texts)
        assert_same(ours, step(lambda a, b: reference(a @ b.T, labels), images, texts))


def test_half_embeddings_and_autocast():
    images, texts, captions = (part.bfloat16() for part in embeddings(20))
    ours = step(loss_of(captions=captions), images, texts)
    assert ours[0].dtype == torch.float32
    assert ours[1].dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = step(loss_of(captions=captions), images, texts)
    assert_same(cast, ours)
    exact = step(loss_of(captions=captions), images.float(), texts.float())
    assert_same(ours, [part.bfloat16().float() if part.ndim else part for part in exact])


def test_there_are_no_warnings():
    """In a process of its own, since torch warns once in a process."""
    code = """
import torch
from bcls.losses import StreamingBCLSLoss
rows = torch.eye(3).requires_grad_()
StreamingBCLSLoss()(rows, rows, torch.eye(3)).backward()
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_labels_get_no_gradient():
    images, texts, captions = embeddings(6)
    captions.requires_grad_()
    loss_of(captions=captions)(images.requires_grad_(), texts).backward()
    assert captions.grad is None


def test_second_derivative_is_refused():
    images, texts, captions = embeddings(6)
    leaf = images.requires_grad_()
    value = loss_of(captions=captions)(leaf * 2, texts)
    (gradient,) = torch.autograd.grad(value, leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"images": torch.zeros(0, 3)}, "images"),
        ({"texts": torch.zeros(4, 3)}, "texts"),
        ({"captions": torch.zeros(4, 2)}, "captions"),
        ({"image_ids": torch.zeros(4, dtype=torch.int64)}, "image_ids"),
        ({"image_ids": torch.zeros(5)}, "image_ids"),
        ({"image_ids": torch.zeros(5, dtype=torch.bool)}, "image_ids"),
        ({"image_ids": [0, 1, 2, 3, 4]}, "image_ids"),
        ({"images": [[0.0]]}, "images"),
        ({"images": None}, "images"),
        ({"texts": torch.zeros(5, 3, dtype=torch.int64)}, "texts"),
        ({"texts": torch.zeros(5, 3, device="meta")}, "texts"),
        ({"captions": torch.eye(5, dtype=torch.int64)}, "captions"),
        ({"captions": torch.eye(5) * 10}, "captions"),
        ({"captions": torch.eye(5).fill_diagonal_(torch.nan)}, "captions"),
        ({"references": torch.ones(5, 2), "reference_image": torch.arange(5)}, "references"),
        ({"references": torch.ones(5, 2), "reference_image": list(range(5))}, "reference_image"),
        ({"references": torch.zeros(5, 2)}, "reference_image"),
        ({"references": torch.zeros(5, 3), "reference_image": torch.arange(5)}, "references"),
        ({"references": torch.zeros(4, 2), "reference_image": torch.arange(4)}, "reference_image"),
        ({"references": torch.zeros(5, 2), "reference_image": torch.arange(5) + 1}, "reference_image"),
        ({"references": torch.zeros(5, 2), "reference_image": torch.arange(5.0)}, "reference_image"),
        ({"references": torch.zeros(0, 2), "reference_image": torch.arange(0)}, "reference_image"),
    ],
)
def test_bad_input_is_named(changes, named):
    given = {"images": torch.zeros(5, 3), "texts": torch.zeros(5, 3), "captions": torch.ones(5, 2) / 2**0.5, **changes}
    with pytest.raises(ValueError, match=f"^`{named}`"):
        StreamingBCLSLoss()(given.pop("images"), given.pop("texts"), given.pop("captions"), **given)


def test_the_first_row_that_is_no_unit_vector_is_named():
    images, texts, captions = embeddings(6)
    captions[3] *= 1.01
    with pytest.raises(ValueError, match=r"^`captions`: expected rows of length 1, got length 1.01 in row 3; divide"):
        loss_of(captions=captions)(images, texts)
    captions[2, 0] = torch.nan
    with pytest.raises(ValueError, match=r"got length nan in row 2; check for an empty caption"):
        loss_of(captions=captions)(images, texts)
