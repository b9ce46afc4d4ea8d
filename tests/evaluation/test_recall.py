"""Recalls and ranks: the definition, sorting, and equal counts on the CPU and on a device."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bcls._core.extras import cpu_count
from bcls.evaluation import inputs as _inputs
from bcls.evaluation import recall as _ranks_on_device
from bcls.evaluation.recall import (
    best_targets,
    count_above,
    median_rank,
    query_ranks,
    recalls,
    recalls_from_ranks,
    shares_within,
)


def by_sorting(similarity, image_of_caption, ks):
    """Whole rows and columns sorted, then a look at the first K."""
    owner = np.asarray(image_of_caption)
    rows = [np.flatnonzero(owner == i) for i in range(len(similarity))]
    metrics = {}
    for k in ks:
        tops = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        hits = [bool(set(tops[i]) & set(gold)) for i, gold in enumerate(rows) if len(gold)]
        metrics[f"i2t_r{k}"] = 100 * sum(hits) / len(hits)
    for k in ks:
        tops = np.argsort(-similarity.T, axis=1, kind="stable")[:, :k]
        metrics[f"t2i_r{k}"] = 100 * np.mean([owner[j] in tops[j] for j in range(len(owner))])
    return metrics | {"rsum": sum(metrics.values())}


@st.composite
def tied_problems(draw):
    images, captions = draw(st.integers(1, 9)), draw(st.integers(1, 14))
    # Few distinct values: ties everywhere.
    values = st.integers(-2, 2).map(lambda v: v / 4)
    similarity = draw(arrays(np.float32, (images, captions), elements=values))
    owner = draw(st.lists(st.integers(0, images - 1), min_size=captions, max_size=captions))
    return similarity, owner


@given(tied_problems())
def test_agrees_with_sorting_under_ties_and_uneven_captions(problem):
    similarity, owner = problem
    assert recalls(similarity, owner, ks=(1, 2, 5)) == pytest.approx(by_sorting(similarity, owner, (1, 2, 5)))


@pytest.mark.parametrize("width", [1, 3, 700])
def test_blocks_give_the_same_metrics(monkeypatch, width):
    rng = np.random.default_rng(0)
    similarity = rng.integers(0, 50, (301, 612)).astype(np.float32)
    owner = rng.integers(0, 301, 612)
    expected = by_sorting(similarity, owner, (1, 5, 10))
    monkeypatch.setattr("bcls.evaluation.recall._BLOCK", width * 612)
    assert recalls(similarity, owner) == pytest.approx(expected)


def test_more_rows_above_than_a_byte_counts():
    similarity = np.ones((1000, 1))
    similarity[999] = 0.0
    assert recalls(similarity, [999], ks=(999, 1000)) == {
        "i2t_r999": 100.0,
        "i2t_r1000": 100.0,
        "t2i_r999": 0.0,
        "t2i_r1000": 100.0,
        "rsum": 300.0,
    }


def test_the_lower_index_wins_a_tie():
    metrics = recalls(np.zeros((2, 4)), [0, 0, 1, 1], ks=(1, 2, 3))
    assert [metrics[f"t2i_r{k}"] for k in (1, 2, 3)] == [50.0, 100.0, 100.0]
    assert [metrics[f"i2t_r{k}"] for k in (1, 2, 3)] == [50.0, 50.0, 100.0]


def test_an_image_without_captions_is_in_the_gallery_only():
    metrics = recalls(np.array([[0.2, 0.3], [0.9, 0.1]]), [0, 0], ks=(1,))
    assert metrics == {"i2t_r1": 100.0, "t2i_r1": 50.0, "rsum": 150.0}


def test_one_image_and_one_caption():
    assert recalls(np.array([[-3.0]]), [0])["rsum"] == 600.0


def test_folds_are_the_mean_of_the_parts():
    rng = np.random.default_rng(1)
    similarity, owner = rng.random((20, 60)), np.sort(np.r_[np.arange(20), rng.integers(0, 20, 40)])
    parts = []
    for first in range(0, 20, 4):
        inside = (owner >= first) & (owner < first + 4)
        parts.append(recalls(similarity[first : first + 4][:, inside], owner[inside] - first))
    folded = recalls(similarity, owner, folds=5)
    assert folded == pytest.approx({key: np.mean([part[key] for part in parts]) for key in parts[0]})
    assert folded != recalls(similarity, owner)
    assert list(folded) == ["i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum"]


def test_rsum_of_folds_is_the_sum_of_six_mean_recalls_and_not_what_scan_prints():
    """SCAN's 5-fold line takes six times the mean of the image-to-text recalls; issue 23 of kuanghuei/SCAN."""
    rng = np.random.default_rng(4)
    owner = np.repeat(np.arange(50), 5)
    similarity = 2 * (owner == np.arange(50)[:, None]) + rng.standard_normal((50, 250))
    folds = [
        recalls(similarity[first : first + 10, 5 * first : 5 * first + 50], owner[:50]) for first in range(0, 50, 10)
    ]
    # One row a fold, as that code collects it: the recalls, their two means and their sum.
    names = ["i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10"]
    rows = [[fold[name] for name in names] for fold in folds]
    rows = [[*row, sum(row[:3]) / 3, sum(row[3:]) / 3, sum(row)] for row in rows]
    means = np.mean(rows, axis=0)
    ours = recalls(similarity, owner, folds=5)
    assert ours["rsum"] == pytest.approx(means[:6].sum())
    assert ours["rsum"] == pytest.approx(means[8])
    assert abs(means[6] * 6 - ours["rsum"]) > 5.0


def test_captions_in_any_order_within_a_fold():
    similarity, owner = np.random.default_rng(2).random((4, 8)), np.array([1, 0, 0, 1, 3, 3, 2, 2])
    order = np.argsort(owner, kind="stable")
    assert recalls(similarity, owner, ks=(1,), folds=2) == recalls(similarity[:, order], owner[order], ks=(1,), folds=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_tensors_of_every_dtype(dtype):
    similarity = (torch.randn(12, 30, generator=torch.Generator().manual_seed(0)) * 8).to(dtype)
    owner = torch.arange(30) % 12
    expected = by_sorting(similarity.double().numpy(), owner.numpy(), (1, 5))
    assert recalls(similarity.requires_grad_(dtype.is_floating_point), owner, ks=(1, 5)) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.uint8, bool])
def test_arrays_of_every_dtype_also_not_contiguous(dtype):
    wide = (np.random.default_rng(3).random((30, 24)) * 4).astype(dtype)
    similarity = wide.T[::2]
    owner = np.arange(30) % 12
    expected = by_sorting(similarity.astype(np.float64), owner, (1, 5))
    assert recalls(similarity, owner, ks=(1, 5)) == pytest.approx(expected)
    if dtype is not bool:
        assert recalls(torch.from_numpy(wide).T[::2], owner, ks=(1, 5)) == pytest.approx(expected)


@pytest.mark.parametrize("scores", [np.array([[1.0], [1.0 + 1e-12]]), np.array([[2**30], [2**30 + 1]])])
def test_scores_that_differ_by_less_than_float32_can_tell_are_no_ties(scores):
    assert recalls(scores, [1], ks=(1,))["t2i_r1"] == 100.0
    assert recalls(torch.from_numpy(scores), [1], ks=(1,))["t2i_r1"] == 100.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 5])
def test_the_first_bad_row_is_named(bad, column):
    similarity = np.zeros((300, 6), dtype=np.float32)
    similarity[271, column] = similarity[290, column] = bad
    with pytest.raises(ValueError, match=rf"`similarity`: expected finite numbers, got {bad} in row 271;"):
        recalls(similarity, np.arange(6))
    with pytest.raises(ValueError, match="row 271"):
        recalls(similarity, [0, 1, 2, 150, 151, 152], folds=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"similarity": [[1.0]]}, "`similarity`: expected a matrix .* got list"),
        ({"similarity": np.zeros(4)}, r"`similarity`.*shape \(4,\)"),
        ({"similarity": np.zeros((0, 4))}, r"`similarity`.*shape \(0, 4\)"),
        ({"similarity": np.zeros((2, 4), dtype=complex)}, "`similarity`.*complex128"),
        ({"similarity": torch.zeros((2, 4), dtype=torch.complex64)}, "`similarity`.*complex64"),
        ({"similarity": np.array([["a"] * 4] * 2)}, "`similarity`.*real numbers"),
        ({"image_of_caption": [0, 1]}, r"`image_of_caption`: expected 4 integers.*shape \(2,\)"),
        ({"image_of_caption": [0.0, 0.0, 1.0, 1.0]}, "`image_of_caption`.*float64"),
        ({"image_of_caption": [0, 0, 1, 2]}, "`image_of_caption`: expected integers 0 to 1, got 2 at caption 3"),
        ({"image_of_caption": [0, -1, 1, 1]}, "got -1 at caption 1"),
        ({"image_of_caption": [0, 1, 0, 1], "folds": 2}, "captions grouped by fold, got caption 2 of an earlier"),
        ({"image_of_caption": [0, 0, 0, 0], "folds": 2}, "fold 1 without any"),
        ({"folds": 3}, "`folds`: expected a divisor of the 2 images, got 3"),
        ({"folds": 0}, "`folds`"),
        ({"folds": "2"}, "`folds`: expected a whole number not below 1, got '2'"),
        ({"folds": 2.0}, "`folds`"),
        ({"folds": None}, "`folds`"),
        ({"folds": True}, "`folds`"),
        ({"ks": 5}, "`ks`: expected a list of whole numbers above 0, got 5"),
        ({"ks": None}, "`ks`"),
        ({"ks": "15"}, "`ks`"),
        ({"ks": (True,)}, "`ks`"),
        ({"image_of_caption": [[0, 0], [1]]}, "`image_of_caption`: expected numbers or names, all of one kind"),
        ({"image_of_caption": None}, "`image_of_caption`: .* got None"),
        ({"image_of_caption": torch.zeros(4, dtype=torch.bfloat16)}, "`image_of_caption`.*float32"),
        ({"image_of_caption": torch.zeros(4, requires_grad=True)}, "`image_of_caption`.*float32"),
        ({"ks": ()}, "`ks`"),
        ({"ks": (0, 1)}, "`ks`"),
        ({"ks": (1, 1)}, "`ks`"),
        ({"ks": (1.5,)}, "`ks`"),
    ],
)
def test_bad_arguments(changes, message):
    arguments = {"similarity": np.zeros((2, 4)), "image_of_caption": [0, 0, 1, 1]} | changes
    with pytest.raises(ValueError, match=message):
        recalls(**arguments)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_tensors_on_a_gpu():
    similarity, owner = torch.randn(12, 30), torch.arange(30) % 12
    assert recalls(similarity.cuda(), owner.cuda()) == recalls(similarity, owner)


def test_targets_of_queries_with_and_without_gold_items():
    targets = best_targets(np.array([0.5, 0.7, 0.7, -1.0]), np.array([1, 1, 1, 3]), np.array([0, 8, 4, 2]), 4)
    assert targets.item.tolist() == [-1, 4, -1, 2]
    assert targets.score.tolist() == [np.inf, 0.7, np.inf, -1.0]
    assert targets.exists().tolist() == [False, True, False, True]


@pytest.mark.parametrize("rows", [slice(1, 3), np.array([0, 2])])
def test_counts_within_some_rows_and_columns(rows):
    scores, columns = np.random.default_rng(0).random((3, 7)), np.array([0, 2, 5])
    of_images = best_targets(scores[:, 6], np.arange(3), np.full(3, 6), 3)
    of_captions = best_targets(scores[1], np.arange(7), np.ones(7, dtype=np.int64), 7)
    (by_image,), (by_caption,) = count_above(scores, rows, columns, [of_images], [of_captions])
    part = scores[rows][:, columns]
    assert by_image.tolist() == (part > scores[rows, 6, None]).sum(1).tolist()
    assert by_caption.tolist() == (part > scores[1, columns]).sum(0).tolist()


def test_cores_without_cpu_affinity(monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert cpu_count() == 3
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert cpu_count() == 1


def test_cut_offs_of_any_integer_type():
    similarity = np.random.default_rng(0).random((3, 6))
    owner = np.repeat(np.arange(3), 2)
    assert recalls(similarity, owner, ks=np.array([1, 2]), folds=np.int64(1)) == recalls(similarity, owner, ks=[1, 2])


def sorted_ranks(similarity, owner):
    """Ranks from whole sorted rows and columns."""
    i2t, t2i = [], []
    for image, row in enumerate(similarity):
        order = np.argsort(-row, kind="stable").tolist()
        places = [order.index(caption) + 1 for caption, one in enumerate(owner) if one == image]
        i2t.append(min(places, default=0))
    for caption, column in enumerate(similarity.T):
        t2i.append(np.argsort(-column, kind="stable").tolist().index(owner[caption]) + 1)
    return i2t, t2i


@st.composite
def problems(draw):
    images, captions = draw(st.integers(1, 9)), draw(st.integers(1, 14))
    similarity = draw(arrays(np.float32, (images, captions), elements=st.sampled_from([-0.5, 0.0, 0.25])))
    return similarity, draw(st.lists(st.integers(0, images - 1), min_size=captions, max_size=captions))


@given(problems())
def test_ranks_are_those_of_sorted_lists(problem):
    similarity, owner = problem
    ranks, expected = query_ranks(similarity, owner), sorted_ranks(similarity, owner)
    assert (ranks.i2t.tolist(), ranks.t2i.tolist()) == expected
    asked = [rank for rank in expected[0] if rank]
    metrics = median_rank(similarity, owner)
    assert metrics["i2t_median_rank"] == np.floor(np.median(asked))
    assert metrics["t2i_mean_rank"] == pytest.approx(np.mean(expected[1]))
    # Recalls are made of the same ranks.
    assert recalls(similarity, owner, ks=(2,))["t2i_r2"] == pytest.approx(100 * np.mean(ranks.t2i <= 2))


def test_one_image_and_constant_scores():
    assert set(median_rank(np.zeros((1, 1)), [0]).values()) == {1.0}
    assert query_ranks(np.zeros((2, 4)), [0, 0, 1, 1]).i2t.tolist() == [1, 3]


def test_bad_arguments_median():
    with pytest.raises(ValueError, match="got nan in row 1"):
        median_rank(np.array([[0.0, 1.0], [np.nan, 0.0]]), [0, 1])
    with pytest.raises(ValueError, match="`image_of_caption`"):
        median_rank(np.zeros((2, 2)), [0, 2])


def test_the_median_is_rounded_down():
    # Ranks 2 and 4.
    assert median_rank(np.array([[3.0, 4, 2, 1], [4, 3, 2, 1]]).T, [0, 3])["t2i_median_rank"] == 3.0
    # Ranks 1 and 4.
    assert median_rank(np.array([[3.0, 4, 2, 1], [4, 3, 2, 1]]).T, [1, 3])["t2i_median_rank"] == 2.0


def test_recalls_from_ranks_are_those_from_scores():
    similarity, owner = np.random.default_rng(0).random((6, 9)), [0, 0, 1, 2, 2, 2, 4, 5, 5]
    assert recalls_from_ranks([query_ranks(similarity, owner)], (1, 3)) == recalls(similarity, owner, ks=(1, 3))
    assert np.isnan(shares_within(np.array([0]), (1,))[1])


KINDS = [np.float16, np.float32, np.float64]


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_same_ranks_with_ties(data):
    images = data.draw(st.integers(1, 7))
    owner = np.sort(np.array(data.draw(st.lists(st.integers(0, images - 1), min_size=1, max_size=20))))
    draw = np.random.default_rng(data.draw(st.integers(0, 999)))
    scores = draw.integers(0, data.draw(st.integers(1, 6)), (images, len(owner))).astype(
        data.draw(st.sampled_from(KINDS))
    )
    tensor = (
        torch.from_numpy(np.ascontiguousarray(scores.T)).T if data.draw(st.booleans()) else torch.from_numpy(scores)
    )
    plain = query_ranks(scores, owner), recalls(scores, owner), median_rank(scores, owner)
    before = _inputs._IN_PLACE_DEVICES
    try:
        _inputs._IN_PLACE_DEVICES = ("cpu",)
        there = query_ranks(tensor, owner), recalls(tensor, owner), median_rank(tensor, owner)
    finally:
        _inputs._IN_PLACE_DEVICES = before
    np.testing.assert_array_equal(plain[0].i2t, there[0].i2t)
    np.testing.assert_array_equal(plain[0].t2i, there[0].t2i)
    for one, other in zip(plain[1:], there[1:], strict=True):
        assert other == pytest.approx(one, nan_ok=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_raise_the_same_error(bad, monkeypatch):
    scores = np.eye(4, dtype=np.float32)
    scores[2, 1] = bad
    with pytest.raises(ValueError, match="similarity") as plain:
        recalls(scores, np.arange(4))
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", ("cpu",))
    with pytest.raises(ValueError, match="similarity") as there:
        recalls(torch.from_numpy(scores), np.arange(4))
    assert str(there.value) == str(plain.value)


def test_folds_are_counted_in_parts(monkeypatch):
    scores = np.random.default_rng(0).standard_normal((6, 12)).astype(np.float32)
    owner = np.repeat(np.arange(6), 2)
    plain = recalls(scores, owner, folds=3)
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", ("cpu",))
    assert recalls(torch.from_numpy(scores), owner, folds=3) == plain


def test_counting_on_a_device_needs_the_whole_matrix_and_a_limited_size(monkeypatch):
    monkeypatch.setattr(_inputs, "_IN_PLACE_DEVICES", ("cpu",))
    monkeypatch.setattr(_ranks_on_device, "_DEVICE_BLOCK", 12)
    whole = slice(None)
    assert _ranks_on_device._counts_on_device(torch.zeros(3, 4), whole, whole)
    assert not _ranks_on_device._counts_on_device(torch.zeros(3, 5), whole, whole)
    assert not _ranks_on_device._counts_on_device(torch.zeros(3, 4), slice(0, 2), whole)
