import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bcls.data.judgements import CxCPairs, read_cxc
from bcls.evaluation.coco import cxc_image_image, cxc_text_text, load_truth
from tests.reference.within import recall

needs_data = pytest.mark.skipif(
    "BCLS_DATA" not in os.environ, reason="BCLS_DATA does not name the folder of the datasets"
)


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
    figures = cxc_image_image(np.ones((1, 1)), [4], as_table([4], []))
    assert math.isnan(figures["cxc_r1_i2i"])
    assert figures["cxc_empty_i2i"] == 1.0


def test_the_usual_cut_offs():
    table = as_table([1, 2, 3], [(0, 1, 4.0)])
    for name, figures in (
        ("i2i", cxc_image_image(np.eye(3), [1, 2, 3], table)),
        ("t2t", cxc_text_text(np.eye(3), [1, 2, 3], [0, 0, 1], table)),
    ):
        assert list(figures) == [f"cxc_r1_{name}", f"cxc_r5_{name}", f"cxc_r10_{name}", f"cxc_empty_{name}"]


def test_bad_arguments():
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


@needs_data
def test_the_published_tables():
    folder = Path(os.environ["BCLS_DATA"]) / "cxc"
    images, texts = read_cxc(folder / "sis_test.csv.gz"), read_cxc(folder / "sts_test.csv.gz")
    assert (len(images.first), len(texts.first)) == (46719, 44045)
    ids = np.union1d(images.first, images.second)
    similarity = np.random.default_rng(0).random((len(ids), len(ids)), dtype=np.float32)
    figures = cxc_image_image(similarity, ids, images)
    # 4,791 images were judged 2.5 or more with some other image.
    assert figures["cxc_empty_i2i"] == len(ids) - 4791
    assert 0.0 < figures["cxc_r10_i2i"] < 5.0


@needs_data
def test_the_table_of_images_and_captions_is_the_ground_truth_of_eccv_caption():
    pytest.importorskip("eccv_caption", reason='needs pip install "bcls[eval]"')
    judged = read_cxc(Path(os.environ["BCLS_DATA"]) / "cxc" / "sits_test.csv.gz")
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
