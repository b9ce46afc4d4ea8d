"""BCLS from embeddings equals BCLS on the matrix."""

import subprocess
import sys

import pytest
import torch

from bcls.labels.relevance import relevance as make_relevance
from bcls.losses import BCLSLoss, StreamingBCLSLoss
from bcls.losses.fused import matrix_loss
from bcls.losses.streaming import streaming_loss
from bcls.losses.windows import SoftNegatives, rungs, sliding_windows
from tests.losses.factories import assert_same, embeddings, ids_of, plain, step


def settings(size, **changes):
    both = {
        "soft": SoftNegatives(average=True, scale=1 / size),
        "windows": sliding_windows(scale=2 / size),
    }
    return both | changes


def total(terms):
    return terms.binary + terms.continuous


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
        step(
            lambda a, b: total(streaming_loss(a, b, captions, image_ids=ids, step=rows, **settings(size))),
            images,
            texts,
        ),
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


def test_the_class_uses_references_and_tiles():
    images, texts, captions = embeddings(18)
    _, _, more = embeddings(30, seed=1)
    references, owner = torch.cat((more, captions)), torch.cat((torch.arange(30) * 7 % 11, torch.arange(18)))
    inputs = {"references": references, "reference_image": owner}
    value = StreamingBCLSLoss(step=5, reduction="sum")(images, texts, captions, **inputs)
    halves = {"soft": SoftNegatives(), "windows": sliding_windows()}
    assert value == total(streaming_loss(images, texts, captions, step=5, **inputs, **halves))


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


@pytest.mark.parametrize("left_out", ["soft", "windows"])
def test_one_half_alone(left_out):
    images, texts, captions = embeddings(20)
    halves = settings(20, **{left_out: None})
    ours = step(lambda a, b: total(streaming_loss(a, b, captions, step=7, **halves)), images, texts)
    labels = label_matrix(captions)
    assert_same(ours, step(lambda a, b: total(matrix_loss(a @ b.T, labels, **halves)), images, texts))


def test_rungs_stream_too():
    images, texts, captions = embeddings(20)
    halves = settings(20, windows=rungs((0.2, 0.5), (0.1, 0.0), (1.0, 0.5)))
    ids = ids_of(20)
    ours = step(lambda a, b: total(streaming_loss(a, b, captions, image_ids=ids, step=7, **halves)), images, texts)
    labels = label_matrix(captions, ids)
    assert_same(ours, step(lambda a, b: total(matrix_loss(a @ b.T, labels, image_ids=ids, **halves)), images, texts))


def test_labels_are_the_best_of_an_images_references():
    images, texts, captions = embeddings(18)
    _, _, more = embeddings(30, seed=1)
    references = torch.cat((more, captions))
    owner = torch.cat((torch.arange(30) * 7 % 11, torch.arange(18)))  # from one to four an image
    labels = make_relevance(references.numpy(), captions.numpy(), owner.numpy(), torch.arange(18).numpy())
    labels = torch.as_tensor(labels)
    ours = step(
        lambda a, b: total(
            streaming_loss(a, b, captions, references=references, reference_image=owner, step=5, **settings(18))
        ),
        images,
        texts,
    )
    assert_same(ours, step(lambda a, b: total(matrix_loss(a @ b.T, labels, **settings(18))), images, texts))


def test_half_embeddings_and_autocast():
    images, texts, captions = (part.bfloat16() for part in embeddings(20))
    ours = step(lambda a, b: total(streaming_loss(a, b, captions, **settings(20))), images, texts)
    assert ours[0].dtype == torch.float32
    assert ours[1].dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = step(lambda a, b: total(streaming_loss(a, b, captions, **settings(20))), images, texts)
    assert_same(cast, ours)
    exact = step(lambda a, b: total(streaming_loss(a, b, captions, **settings(20))), images.float(), texts.float())
    assert_same(ours, [part.bfloat16().float() if part.ndim else part for part in exact])


def test_there_are_no_warnings():
    """In a process of its own, since torch warns once in a process."""
    code = """
import torch
from bcls.losses.streaming import streaming_loss
from bcls.losses.windows import sliding_windows
rows = torch.eye(3).requires_grad_()
streaming_loss(rows, rows, torch.eye(3), windows=sliding_windows()).continuous.backward()
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_labels_get_no_gradient():
    images, texts, captions = embeddings(6)
    captions.requires_grad_()
    total(streaming_loss(images.requires_grad_(), texts, captions, **settings(6))).backward()
    assert captions.grad is None


def test_second_derivative_is_refused():
    images, texts, captions = embeddings(6)
    leaf = images.requires_grad_()
    value = total(streaming_loss(leaf * 2, texts, captions, **settings(6)))
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
        ({"step": 0}, "step"),
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
        streaming_loss(given.pop("images"), given.pop("texts"), given.pop("captions"), **given)


def test_the_first_row_that_is_no_unit_vector_is_named():
    images, texts, captions = embeddings(6)
    captions[3] *= 1.01
    with pytest.raises(ValueError, match=r"^`captions`: expected rows of length 1, got length 1.01 in row 3; divide"):
        streaming_loss(images, texts, captions, **settings(6))
    captions[2, 0] = torch.nan
    with pytest.raises(ValueError, match=r"got length nan in row 2; check for an empty caption"):
        streaming_loss(images, texts, captions, **settings(6))
