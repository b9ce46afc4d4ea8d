import contextlib
import io
import math
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bcls._core.extras import MissingExtraError
from bcls.data.judgements import CxCPairs, read_cxc
from bcls.evaluation import coco as _coco_truth
from bcls.evaluation.coco import Truth, check_coco_ids, cxc_image_image, cxc_text_text, eccv, load_truth
from bcls.evaluation.recall import recalls
from tests.reference.eccv import figures as by_lists
from tests.reference.within import recall
from tests.samples import DATA, expect, needs_full

pytest.importorskip("eccv_caption", reason='needs pip install "bcls[eval]"')


def ranked_lists(similarity, image_ids, caption_ids):
    """Rankings by id, as the outside package wants them."""
    rows, columns = (np.argsort(-side, axis=1, kind="stable") for side in (similarity, similarity.T))
    i2t = {int(one): caption_ids[row].tolist() for one, row in zip(image_ids, rows, strict=True)}
    t2i = {int(one): image_ids[column].tolist() for one, column in zip(caption_ids, columns, strict=True)}
    return {"i2t": i2t, "t2i": t2i}


def package_metrics(package, ranked):
    """The metrics of ``eccv_caption``, flattened, in percent."""
    wanted = ("coco_1k_recalls", "coco_5k_recalls", "cxc_recalls", "eccv_map_at_r", "eccv_rprecision", "eccv_r1")
    with contextlib.redirect_stderr(io.StringIO()):
        nested = package.compute_all_metrics(ranked["i2t"], ranked["t2i"], target_metrics=wanted)
    return {f"{name}_{side}": 100 * value for name, sides in nested.items() for side, value in sides.items()}


@pytest.fixture(scope="module")
def package():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import eccv_caption
    return eccv_caption.Metrics()


@st.composite
def small_worlds(draw):
    """Ten images with three captions each, gold items of three kinds, scores full of ties, ids in any order."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    images, captions = rng.permutation(100)[:10] + 500, rng.permutation(1000)[:30]
    owner = np.repeat(images, 3)
    gold = {("coco", "t2i"): {int(c): [int(i)] for c, i in zip(captions, owner, strict=True)}}
    gold["coco", "i2t"] = {int(i): captions[owner == i].tolist() for i in images}
    for name, share in (("cxc", 0.9), ("eccv", 0.4)):
        for direction, queries, items in (("i2t", images, captions), ("t2i", captions, images)):
            asked = [int(query) for query in queries if rng.random() < share] or [int(queries[0])]
            most = min(12, len(items))
            gold[name, direction] = {q: rng.permutation(items)[: rng.integers(1, most + 1)].tolist() for q in asked}
    few = st.integers(-2, 2).map(lambda value: value / 4)
    similarity = draw(arrays(np.float32, (10, 30), elements=few))
    if draw(st.booleans()):
        similarity += rng.standard_normal((10, 30)).astype(np.float32)
    # A model that knows nothing, one that knows all, and one that knows all and says the opposite.
    similarity += draw(st.sampled_from([0.0, 9.0, -9.0])) * (owner == images[:, None]).astype(np.float32)
    if draw(st.booleans()):
        return similarity, images, captions, gold, captions
    return similarity, rng.permutation(images), rng.permutation(captions), gold, captions


@given(small_worlds())
@settings(deadline=None)
def test_small_worlds_agree_with_the_definition_and_with_the_package(package, world):
    similarity, image_ids, caption_ids, gold, order = world
    package.coco_gts, package.cxc_gts, package.eccv_gts = (
        {side: gold[name, side] for side in ("i2t", "t2i")} for name in ("coco", "cxc", "eccv")
    )
    package.coco_ids = order
    ranked = ranked_lists(similarity, image_ids, caption_ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(eccv.__globals__, "load_truth", lambda: Truth.build(gold, order))
        patch.setitem(eccv.__globals__, "_BLOCK", 100)
        metrics = eccv(similarity, image_ids, torch.from_numpy(caption_ids))
        assert eccv(torch.from_numpy(similarity).requires_grad_(), image_ids.tolist(), caption_ids) == metrics
    assert metrics == pytest.approx(by_lists(ranked, gold, order), abs=1e-9)
    assert metrics == pytest.approx(package_metrics(package, ranked), abs=1e-9)


@pytest.fixture(scope="module")
def split():
    """Ids of the real split: images in the order of the file, captions, and the row of each caption's image."""
    truth = load_truth()
    image_ids = truth.image_of_caption[::5]
    assert len(np.unique(image_ids)) == 5000
    return image_ids, truth.captions, np.repeat(np.arange(5000), 5)


@pytest.fixture(scope="module")
def noisy(split):
    """A model that knows something, with ties: scores of a quarter of a unit."""
    scores = np.random.default_rng(0).standard_normal((5000, 25000), dtype=np.float32)
    scores[split[2], np.arange(25000)] += 3.0
    return np.round(scores * 4, out=scores)


@pytest.mark.slow
def test_the_real_ground_truth_against_the_outside_package(split, noisy):
    import eccv_caption

    image_ids, caption_ids, owner = split
    metrics = eccv(noisy, image_ids, caption_ids)
    assert len(metrics) == 24
    plain, folded = recalls(noisy, owner), recalls(noisy, owner, folds=5)
    for k in (1, 5, 10):
        for side in ("i2t", "t2i"):
            assert metrics[f"coco_5k_r{k}_{side}"] == pytest.approx(plain[f"{side}_r{k}"], abs=1e-9)
            assert metrics[f"coco_1k_r{k}_{side}"] == pytest.approx(folded[f"{side}_r{k}"], abs=1e-9)
    # The other metrics depend on the first fifty items only.
    i2t = {int(one): caption_ids[_top(noisy[row])].tolist() for row, one in enumerate(image_ids)}
    columns = np.ascontiguousarray(noisy.T)
    t2i = {int(one): image_ids[_top(columns[row])].tolist() for row, one in enumerate(caption_ids)}
    wanted = ("coco_5k_recalls", "cxc_recalls", "eccv_map_at_r", "eccv_rprecision", "eccv_r1")
    with contextlib.redirect_stderr(io.StringIO()):
        nested = eccv_caption.Metrics().compute_all_metrics(i2t, t2i, target_metrics=wanted)
    for name, sides in nested.items():
        for side, value in sides.items():
            assert metrics[f"{name}_{side}"] == pytest.approx(100 * value, abs=1e-9)
    # In another order of rows and columns there are other ties, but scores without ties know no order.
    rng = np.random.default_rng(1)
    noisy += rng.random(noisy.shape, dtype=np.float32) / 4
    rows, places = rng.permutation(5000), rng.permutation(25000)
    shuffled = eccv(noisy[rows][:, places], image_ids[rows], caption_ids[places])
    assert shuffled == pytest.approx(eccv(noisy, image_ids, caption_ids), abs=0.02)


def _top(row):
    first = np.flatnonzero(row >= np.partition(row, -50)[-50])
    return first[np.argsort(-row[first], kind="stable")][:50]


def test_counts_of_the_real_ground_truth():
    truth = load_truth()
    queries = {name: len(np.unique(pairs[:, 0])) for name, pairs in truth.pairs.items()}
    assert queries == {
        ("coco", "i2t"): 5000,
        ("coco", "t2i"): 25000,
        ("cxc", "i2t"): 5000,
        ("cxc", "t2i"): 24972,
        ("eccv", "i2t"): 1261,
        ("eccv", "t2i"): 1332,
    }
    assert (len(truth.pairs["eccv", "i2t"]), len(truth.pairs["eccv", "t2i"])) == (22550, 11279)
    assert len(truth.pairs["cxc", "i2t"]) == 35585


def test_map_at_r_of_a_list_done_by_hand():
    gold = {("coco", "t2i"): {c: [c] for c in range(5)}, ("coco", "i2t"): {c: [c] for c in range(5)}}
    gold |= {("cxc", side): gold["coco", side] for side in ("i2t", "t2i")}
    gold |= {("eccv", "i2t"): {0: [0, 2, 3, 4]}, ("eccv", "t2i"): {0: [0]}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(eccv.__globals__, "load_truth", lambda: Truth.build(gold, range(5)))
        metrics = eccv(np.zeros((5, 5)), range(5), range(5))
    # The list is 0, 1, 2, 3: a hit, a miss and two hits.
    assert metrics["eccv_map_at_r_i2t"] == pytest.approx(100 * (1 + 2 / 3 + 3 / 4) / 4)
    assert metrics["eccv_rprecision_i2t"] == 75.0
    assert metrics["eccv_r1_i2t"] == 100.0


@pytest.fixture
def tiny(monkeypatch):
    """Five images with a caption each, ids 0 to 4 and 10 to 14."""
    gold = {(name, "t2i"): {10 + c: [c] for c in range(5)} for name in ("coco", "cxc", "eccv")}
    gold |= {(name, "i2t"): {c: [10 + c] for c in range(5)} for name in ("coco", "cxc", "eccv")}
    monkeypatch.setitem(eccv.__globals__, "load_truth", lambda: Truth.build(gold, range(10, 15)))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"image_ids": [0, 1, 2, 3, 9]},
            r"`image_ids`: expected the 5 image ids .* got 1 unknown \(9\), 1 missing \(4\)",
        ),
        ({"image_ids": [0, 1, 2, 3, 3]}, r"got 1 missing \(4\), 1 repeated \(3\)"),
        ({"caption_ids": [95, 96, 97, 98, 99]}, r"got 5 unknown \(95, 96, 97, ...\), 5 missing \(10, 11, 12, ...\)"),
        ({"caption_ids": [10, 96, 97, 98, 99]}, r"got 4 unknown \(96, 97, 98, \.\.\.\)"),
        ({"caption_ids": [10, 11, 97, 98, 99]}, r"got 3 unknown \(97, 98, 99\), 3 missing \(12, 13, 14\)"),
        ({"caption_ids": range(5)}, "`caption_ids`: expected .* got 5 ids of the other kind; rows are images"),
        (
            {"image_ids": [0, 1, 2, 3]},
            r"`similarity`: expected shape \(4, 5\) of 4 images .* got \(5, 5\); give one id",
        ),
        ({"image_ids": [0.0, 1.0, 2.0, 3.0, 4.0]}, "`image_ids`: expected a list of integers, got .* float64"),
        ({"image_ids": np.zeros((5, 2), dtype=int)}, r"`image_ids`.*shape \(5, 2\)"),
        ({"image_ids": 3}, "`image_ids`: expected a list"),
        ({"image_ids": [0, 1, None, 3, 4]}, "`image_ids`: expected numbers or names, all of one kind"),
        ({"similarity": np.full((5, 5), np.nan)}, "`similarity`: expected finite numbers, got nan in row 0"),
        ({"similarity": np.zeros((5, 2)), "image_ids": [1, 2]}, r"got \(5, 2\); it is transposed: give similarity.T"),
    ],
)
def test_bad_arguments(changes, message):
    arguments = {"similarity": np.eye(5), "image_ids": range(5), "caption_ids": range(10, 15)} | changes
    with pytest.raises(ValueError, match=message):
        eccv(**arguments)


@pytest.mark.usefixtures("tiny")
def test_a_perfect_model_and_one_with_constant_scores():
    assert set(eccv(np.eye(5), range(5), range(10, 15)).values()) == {100.0}
    metrics = eccv(np.zeros((5, 5)), range(5), range(10, 15))
    assert (metrics["coco_5k_r1_i2t"], metrics["coco_1k_r1_i2t"], metrics["eccv_map_at_r_t2i"]) == (20.0, 100.0, 20.0)


def test_a_missing_package_is_named_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "eccv_caption", None)
    _coco_truth.load_truth.cache_clear()
    with pytest.raises(MissingExtraError, match=r'needs eccv_caption: pip install "bcls\[eval\]"'):
        eccv(np.zeros((1, 1)), [1], [1])


@st.composite
def problems(draw):
    size = draw(st.integers(1, 9))
    similarity = draw(arrays(np.float32, (size, size), elements=st.sampled_from([-0.5, 0.0, 0.25, 1.0])))
    ids = draw(st.permutations(range(50, 50 + size)))
    place = st.integers(0, size - 1)
    rows = draw(st.lists(st.tuples(place, place, st.sampled_from([0.0, 2.4, 2.5, 2.9, 3.0, 5.0])), max_size=12))
    owner = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    return similarity, ids, owner, rows


def as_table(ids, rows):
    first, second = ([ids[row[end]] for row in rows] for end in (0, 1))
    return CxCPairs(np.array(first, dtype=int), np.array(second, dtype=int), np.array([row[2] for row in rows]))


def gold_sets(size, rows, threshold, owner=None):
    gold = [set() for _ in range(size)]
    for a, b, score in rows:
        if score >= threshold and a != b:
            gold[a].add(b)
            gold[b].add(a)
    for a in range(size if owner else 0):
        gold[a] |= {b for b in range(size) if b != a and owner[a] == owner[b]}
    return gold


@given(problems())
def test_the_definition_with_ties_and_queries_without_gold(problem):
    similarity, ids, owner, rows = problem
    table = as_table(ids, rows)
    i2i = cxc_image_image(similarity, ids, table, ks=(1, 3))
    t2t = cxc_text_text(torch.from_numpy(similarity), ids, owner, table, ks=(1, 3))
    for k in (1, 3):
        share, empty = recall(similarity.tolist(), gold_sets(len(ids), rows, 2.5), k)
        assert (i2i[f"cxc_r{k}_i2i"], i2i["cxc_empty_i2i"]) == pytest.approx((share, empty), nan_ok=True)
        share, empty = recall(similarity.tolist(), gold_sets(len(ids), rows, 3.0, owner), k)
        assert (t2t[f"cxc_r{k}_t2t"], t2t["cxc_empty_t2t"]) == pytest.approx((share, empty), nan_ok=True)


def test_one_item_alone():
    metrics = cxc_image_image(np.ones((1, 1)), [4], as_table([4], []))
    assert math.isnan(metrics["cxc_r1_i2i"])
    assert metrics["cxc_empty_i2i"] == 1.0


def test_the_usual_cut_offs():
    table = as_table([1, 2, 3], [(0, 1, 4.0)])
    for name, metrics in (
        ("i2i", cxc_image_image(np.eye(3), [1, 2, 3], table)),
        ("t2t", cxc_text_text(np.eye(3), [1, 2, 3], [0, 0, 1], table)),
    ):
        assert list(metrics) == [f"cxc_r1_{name}", f"cxc_r5_{name}", f"cxc_r10_{name}", f"cxc_empty_{name}"]


def test_bad_arguments_cxc():
    table = as_table([1, 2, 3], [(0, 1, 4.0)])
    with pytest.raises(ValueError, match=r"`similarity`: expected shape \(3, 3\), got \(3, 4\)"):
        cxc_image_image(np.zeros((3, 4)), [1, 2, 3], table)
    with pytest.raises(ValueError, match="`image_ids`: expected the 2 ids of the judgements, got 1 missing, such as 2"):
        cxc_image_image(np.zeros((2, 2)), [1, 3], table)
    with pytest.raises(ValueError, match="`caption_ids`: expected each id once, got 1 repeated"):
        cxc_text_text(np.zeros((3, 3)), [1, 2, 2], [0, 0, 1], table)
    with pytest.raises(ValueError, match="`image_of_caption`: expected 3 integers"):
        cxc_text_text(np.zeros((3, 3)), [1, 2, 3], [0, 0], table)
    with pytest.raises(ValueError, match="got nan in row 0"):
        cxc_image_image(np.full((3, 3), np.nan), [1, 2, 3], table)


def test_the_published_tables():
    folder = DATA / "cxc"
    images, texts = read_cxc(folder / "sis_test.csv.gz"), read_cxc(folder / "sts_test.csv.gz")
    assert (len(images.first), len(texts.first)) == expect((46719, 44045), (132, 552))
    ids = np.union1d(images.first, images.second)
    similarity = np.random.default_rng(0).random((len(ids), len(ids)), dtype=np.float32)
    metrics = cxc_image_image(similarity, ids, images)
    # 4,791 images were rated 2.5 or more with some other image; of the samples all but one.
    assert metrics["cxc_empty_i2i"] == len(ids) - expect(4791, 11)
    assert 0.0 < metrics["cxc_r10_i2i"] <= expect(5.0, 100.0)


@needs_full
def test_the_table_of_images_and_captions_is_the_ground_truth_of_eccv_caption():
    pytest.importorskip("eccv_caption", reason='needs pip install "bcls[eval]"')
    judged = read_cxc(DATA / "cxc" / "sits_test.csv.gz")
    alike = judged.score >= 3.0
    pairs = np.column_stack([judged.second[alike], judged.first[alike]])
    assert set(map(tuple, pairs.tolist())) == set(map(tuple, load_truth().pairs["cxc", "i2t"].tolist()))


@pytest.mark.parametrize(
    ("judgements", "message"),
    [
        (([1], [2]), "expected two arrays of ids and one of scores, of one length, got tuple"),
        (None, "got NoneType"),
        (([1, 2], [2, 3], [4.0]), r"got shapes \(2,\), \(2,\) and \(1,\)"),
        (([1, 2], [2], [4.0, 4.0]), r"got shapes \(2,\), \(1,\) and"),
        (([1], [2], [[4.0]]), r"and \(1, 1\)"),
        (([1.0], [2], [4.0]), "expected a list of integers"),
        (([1], [2], [math.nan]), "expected scores that are finite numbers"),
        (([1], [2], ["4"]), "expected scores that are finite numbers"),
    ],
)
def test_bad_judgements(judgements, message):
    with pytest.raises(ValueError, match=f"`judgements`: .*{message}"):
        cxc_image_image(np.eye(3), [1, 2, 3], judgements)


def test_judgements_may_be_lists():
    table = as_table([1, 2, 3], [(0, 1, 4.0)])
    assert cxc_image_image(np.eye(3), [1, 2, 3], [[1], [2], [4]]) == cxc_image_image(np.eye(3), [1, 2, 3], table)


def test_ids_are_checked_without_scores():
    truth = load_truth()
    images, captions = truth.images(), truth.captions
    check_coco_ids(images[::-1], captions)  # any order
    with pytest.raises(ValueError, match=r"`caption_ids`: expected the 25000 caption ids .* got 1 missing \(\d+\)"):
        check_coco_ids(images, captions[1:])
    with pytest.raises(ValueError, match=r"`image_ids`: .* swap the ids"):
        check_coco_ids(captions, images)
