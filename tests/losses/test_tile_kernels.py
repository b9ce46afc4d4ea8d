"""The Triton backend against the plain losses: on a GPU if there is one, else in Triton's interpreter.

The kernel for small matrices also has a file of its own, ``test_small_kernel.py``. The interpreter must be enabled
before Triton is imported, so ``test_interpreter.py`` runs this file in a separate process.
"""

import pytest
import torch

from bcls.losses import BCLSLoss, KendallLoss, StreamingBCLSLoss, TripletSoftLoss
from bcls.losses.backends import engine_for
from bcls.losses.definitions import SoftNegatives, Windows, check_now, sliding_windows
from bcls.losses.fused import matrix_loss
from tests.losses.factories import (
    DEVICE,
    GPU,
    assert_same,
    batch,
    check_valid_windows_alone,
    embeddings,
    ids_of,
    plain,
    slow_if_interpreted,
    step,
    whole,
)

SIZES = [1, 2, 40, 70, 1100] if GPU else [1, 40]


@pytest.fixture(autouse=True, params=["tiles", "anchors"] if GPU else ["tiles"])
def _kernels(monkeypatch, request):
    """Plain torch must not be used here, and the kernel for small matrices only on a GPU."""
    from bcls.losses._triton import small
    from bcls.losses._triton.engine import TritonEngine

    assert isinstance(engine_for(torch.device(DEVICE)), TritonEngine)
    if request.param == "tiles":
        monkeypatch.setattr(small, "LARGEST", 0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("alpha", "beta"),
    [(0.25, 0.1), *(pytest.param(*two, marks=slow_if_interpreted) for two in [(0.2, 0.1), (0.0, 0.3)])],
)
def test_bcls(size, alpha, beta):
    similarity, relevance = batch(size, device=DEVICE)
    ids = ids_of(size, device=DEVICE)
    ours = step(whole(relevance, ids, alpha=alpha, beta=beta, average=True), similarity)
    reference = plain(BCLSLoss(alpha, beta, lse="mean"))
    assert_same(ours, step(lambda scores: reference(scores, relevance, image_ids=ids), similarity))


@pytest.mark.skipif(not GPU, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("beta", [0.01, 0.001])  # 180 windows, and 1,800, more than one program scans
def test_many_windows(beta):
    similarity, relevance = batch(300, device=DEVICE)
    reference = plain(BCLSLoss(0.2, beta))
    assert_same(
        step(whole(relevance, beta=beta), similarity), step(lambda scores: reference(scores, relevance), similarity)
    )


def test_more_windows_than_a_program_scans(monkeypatch):
    from bcls.losses._triton import engine

    monkeypatch.setattr(engine, "_SCANNED", 8)
    similarity, relevance = batch(20, device=DEVICE)
    assert_same(
        step(whole(relevance, average=True), similarity),
        step(lambda scores: plain(BCLSLoss(lse="mean"))(scores, relevance), similarity),
    )


def test_valid_windows_alone():
    check_valid_windows_alone(30, device=DEVICE)


@pytest.mark.parametrize("size", SIZES)
def test_soft_negatives_without_labels(size):
    similarity, _ = batch(size, device=DEVICE)
    assert_same(
        step(lambda scores: matrix_loss(scores, soft=SoftNegatives()).binary, similarity),
        step(plain(TripletSoftLoss(reduction="sum")), similarity),
    )


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=slow_if_interpreted), torch.bfloat16])
def test_half_precision(dtype):
    similarity, relevance = batch(40, device=DEVICE)
    rounded = similarity.to(dtype)
    value, gradient = step(whole(relevance), rounded)
    assert gradient.dtype == dtype
    exact, slope = step(whole(relevance), rounded.float())
    assert_same((value, gradient), (exact, slope.to(dtype)), rtol=1e-3)


def test_any_strides():
    similarity, relevance = batch(70, device=DEVICE)
    scores, labels = similarity[::2, ::2], relevance[::2, ::2].fill_diagonal_(1)
    expected = step(whole(labels.contiguous()), scores.contiguous())
    assert_same(step(whole(labels.T.contiguous().T), scores.T.contiguous().T), expected)
    assert_same((whole(labels)(scores),), expected[:1])


def test_equal_scores_pick_the_first_place():
    """So that the gradient does not depend on which program came first."""
    _, relevance = batch(40, device=DEVICE)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 2, (40, 40), generator=generator).float().to(DEVICE)
    first, second = (step(whole(relevance), scores) for _ in range(2))
    assert_same(first, second, rtol=1e-6)
    assert_same(first[:1], step(lambda s: plain(BCLSLoss())(s, relevance), scores)[:1])


def test_labels_out_of_range_stay_in_bounds():
    similarity, relevance = batch(20, device=DEVICE)
    relevance[0, 1], relevance[1, 0] = 1e30, -1e30
    assert matrix_loss(similarity, relevance, windows=sliding_windows()).continuous.isfinite()
    with pytest.raises(ValueError, match=r"^`relevance`: .* got values from -1e\+30 to 1e\+30 in an earlier call"):
        check_now()


@pytest.mark.parametrize("rows", [pytest.param(None, marks=slow_if_interpreted), 16])
def test_streaming(rows):
    size = 300 if GPU else 40
    images, texts, captions = embeddings(size, device=DEVICE)
    ids = ids_of(size, device=DEVICE)
    labels = (captions @ captions.T).clamp(-1, 1).fill_diagonal_(1).masked_fill(ids[:, None] == ids, 1)

    assert_same(
        step(lambda a, b: StreamingBCLSLoss(step=rows)(a, b, captions, image_ids=ids), images, texts),
        step(lambda a, b: BCLSLoss()(a @ b.T, labels, image_ids=ids), images, texts),
    )


@pytest.mark.parametrize("size", [1, 33, 70, 600] if GPU else [1, 9])
@pytest.mark.parametrize("reduction", ["mean", pytest.param("sum", marks=slow_if_interpreted)])
@pytest.mark.parametrize("ranks_from", [1, 10**9])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"margin": 0.05, "normalize": "active"},
        pytest.param({"alpha": 0.0}, marks=slow_if_interpreted),
        pytest.param({"alpha": 0.35, "margin": 0.1}, marks=slow_if_interpreted),
    ],
)
def test_dense_kendall(monkeypatch, size, arguments, reduction, ranks_from):
    monkeypatch.setattr("bcls.losses._triton.engine.RANKS_FROM", ranks_from)
    similarity, relevance = batch(size, device=DEVICE, tied=size % 2 == 1)
    loss = KendallLoss(**arguments, reduction=reduction)
    assert_same(
        step(lambda scores: loss(scores, relevance), similarity),
        step(lambda scores: plain(loss)(scores, relevance), similarity),
    )


@pytest.mark.parametrize("margin", [0.0, 0.05])
@pytest.mark.parametrize("tied", [pytest.param(False, marks=slow_if_interpreted), True])
def test_dense_kendall_by_ranks_of_long_rows_and_few_anchors(monkeypatch, margin, tied):
    """Rows that torch sorts, bounds of 32 bits each, anchors in parts, and candidates of several steps and words."""
    monkeypatch.setattr("bcls.losses._triton.engine.RANKS_FROM", 1)
    monkeypatch.setattr("bcls.losses._triton.ranks.SORTED_UP_TO", 1)
    monkeypatch.setattr("bcls.losses._triton.ranks._PACKED_BELOW", 1)
    monkeypatch.setattr("bcls.losses._triton.ranks._WIDTH", 32)
    monkeypatch.setattr("bcls.losses._triton.ranks._CELLS", 40 * 17)
    similarity, relevance = batch(40, device=DEVICE, tied=tied)
    loss = KendallLoss(margin=margin, normalize="active")
    assert_same(
        step(lambda scores: loss(scores, relevance), similarity),
        step(lambda scores: plain(loss)(scores, relevance), similarity),
    )


def test_whole_numbers_are_passed_on_as_floats(monkeypatch):
    """Compiled code is found again by a key in which 1 and 1.0 are equal."""
    from bcls.losses._triton import engine, small

    monkeypatch.setattr(small, "LARGEST", 0)
    passed, launch = {}, engine.launch

    def note(kernel, device, grid, tensors, numbers, **options):
        passed.setdefault(kernel.__name__, []).append([type(number) for number in numbers])
        return launch(kernel, device, grid, tensors, numbers, **options)

    monkeypatch.setattr(engine, "launch", note)
    similarity, relevance = batch(5, device=DEVICE)
    for margin, scale in ((0.5, 2.0), (1, 2)):
        terms = {"soft": SoftNegatives(margin, 50, scale=scale), "windows": Windows(0.2, 0.5, False, scale)}
        step(lambda scores, terms=terms: sum(matrix_loss(scores, relevance, **terms)), similarity)
    assert set(passed) > {"mine_tiles", "sum_negatives", "finish_anchors", "soft_slopes", "scatter_pairs"}
    assert all(len(kinds) == 2 and kinds[0] == kinds[1] for kinds in passed.values())


def test_the_kendall_loss_launches_its_kernel(monkeypatch):
    from bcls.losses._triton import engine

    called = []
    kernel = engine._DenseKendall.apply
    monkeypatch.setattr(engine._DenseKendall, "apply", lambda *inputs: called.append(len(inputs[0])) or kernel(*inputs))
    similarity, relevance = batch(9, device=DEVICE)
    KendallLoss()(similarity, relevance)
    BCLSLoss(continuous=KendallLoss())(similarity, relevance)
    assert called == [9, 9]
    KendallLoss()(similarity.double(), relevance)
    KendallLoss()(similarity, relevance.double())
    plain(KendallLoss())(similarity, relevance)
    assert called == [9, 9]


@pytest.mark.parametrize("ranks_from", [1, 10**9])
def test_dense_kendall_accepts_half_precision_and_strides(monkeypatch, ranks_from):
    monkeypatch.setattr("bcls.losses._triton.engine.RANKS_FROM", ranks_from)
    similarity, relevance = batch(16, device=DEVICE)
    rounded, labels = similarity.bfloat16()[::2, ::2], relevance[::2, ::2]
    loss = KendallLoss(reduction="sum")
    value, gradient = step(lambda scores: loss(scores, labels), rounded)
    assert gradient.dtype == torch.bfloat16
    exact = step(lambda scores: plain(loss)(scores, labels), rounded.float().contiguous())
    assert_same((value, gradient), exact, rtol=1e-2)


def test_dense_kendall_has_no_second_derivative():
    similarity, relevance = batch(8, device=DEVICE)
    leaf = similarity.requires_grad_()
    (gradient,) = torch.autograd.grad(KendallLoss()(leaf**2, relevance), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()
    value = plain(KendallLoss())(leaf**2, relevance)
    (gradient,) = torch.autograd.grad(value, leaf, create_graph=True)
    gradient.sum().backward()
