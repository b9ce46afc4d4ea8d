import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bcls.evaluation.graded import pmrp
from tests.reference.pmrp import pmrp as by_loops

VARIANTS = ("pcme", "eccv", "eccv50")


@st.composite
def problems(draw):
    images, captions = draw(st.integers(1, 7)), draw(st.integers(1, 12))
    similarity = draw(arrays(np.float32, (images, captions), elements=st.sampled_from([-0.5, 0.0, 0.25])))
    owner = draw(st.lists(st.integers(0, images - 1), min_size=captions, max_size=captions))
    return similarity, owner, draw(arrays(np.int8, (images, 4), elements=st.integers(0, 1)))


@given(problems(), st.sampled_from(VARIANTS))
def test_the_definition_of_each_variant(problem, variant):
    similarity, owner, codes = problem
    metrics = pmrp(similarity, owner, codes, variant)
    i2t, t2i = by_loops(similarity.tolist(), owner, codes.tolist(), variant)
    assert metrics[f"i2t_pmrp_{variant}"] == pytest.approx(i2t, abs=1e-9, nan_ok=True)
    assert metrics[f"t2i_pmrp_{variant}"] == pytest.approx(t2i, abs=1e-9, nan_ok=True)
    assert metrics["pmrp_unlabelled"] == np.count_nonzero(~codes.any(axis=1))


def test_many_matches_and_blocks():
    rng = np.random.default_rng(0)
    similarity, owner, codes = rng.random((60, 300)), np.repeat(np.arange(60), 5), rng.random((60, 3)) < 0.4
    for variant in VARIANTS:
        metrics = pmrp(torch.from_numpy(similarity), owner, torch.from_numpy(codes), variant)
        assert list(metrics.values())[:2] == pytest.approx(by_loops(similarity.tolist(), owner, codes, variant))
    assert (
        pmrp(similarity, owner, codes, "eccv")["i2t_pmrp_eccv"]
        != pmrp(similarity, owner, codes, "eccv50")["i2t_pmrp_eccv50"]
    )


@pytest.mark.parametrize(("variant", "kept"), [("eccv", None), ("eccv50", 50)])
@pytest.mark.filterwarnings("ignore:failed to import:UserWarning")
def test_the_variants_of_eccv_caption_are_its_own(variant, kept):
    outside = pytest.importorskip("eccv_caption._metrics", reason='needs pip install "bcls[eval]"')
    rng = np.random.default_rng(3)
    similarity, owner, codes = rng.random((40, 200)), np.repeat(np.arange(40), 5), rng.random((40, 5)) < 0.3
    codes[7] = False
    apart = (codes[:, None] != codes).sum(axis=2)
    plausible = (apart <= 2) & codes.any(axis=1) & codes.any(axis=1)[:, None] & ~np.eye(40, dtype=bool)
    i2t = {image: np.flatnonzero(plausible[image][owner]).tolist() for image in range(40) if plausible[image].any()}
    t2i = {c: np.flatnonzero(plausible[i]).tolist() for c, i in enumerate(owner) if plausible[i].any()}
    metrics = pmrp(similarity, owner, codes, variant)
    for direction, gold, scores in (("i2t", i2t, similarity), ("t2i", t2i, similarity.T)):
        ranked = {query: np.argsort(-row).tolist()[:kept] for query, row in enumerate(scores)}
        expected = 100 * outside.compute_rprecision(ranked, gold)
        assert metrics[f"{direction}_pmrp_{variant}"] == pytest.approx(expected, abs=1e-9)


def test_nothing_is_labelled_and_one_image():
    metrics = pmrp(np.zeros((2, 2)), [0, 1], np.zeros((2, 3)), "pcme")
    assert math.isnan(metrics["i2t_pmrp_pcme"])
    assert metrics["pmrp_unlabelled"] == 2.0
    assert pmrp(np.zeros((1, 1)), [0], [[1]], "pcme")["t2i_pmrp_pcme"] == 100.0
    # Its own caption is no match there.
    assert math.isnan(pmrp(np.zeros((1, 1)), [0], [[1]], "eccv")["t2i_pmrp_eccv"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codes": [[1, 0], [1]]}, "`codes`: expected numbers or names, all of one kind"),
        ({"codes": np.zeros((3, 4))}, "`codes`: expected a matrix of 2 rows"),
        ({"codes": np.full((2, 4), 0.5)}, "`codes`: expected 0 or 1"),
        ({"variant": "eccv5"}, "`variant`: expected one of 'pcme', 'eccv', 'eccv50'"),
        ({"similarity": np.zeros(3)}, "`similarity`: expected a matrix"),
        ({"similarity": np.full((2, 3), np.nan)}, "got nan in row 0"),
        ({"image_of_caption": [0, 1]}, "`image_of_caption`"),
    ],
)
def test_bad_arguments(changes, message):
    arguments = {"similarity": np.zeros((2, 3)), "image_of_caption": [0, 0, 1], "codes": np.eye(2), "variant": "pcme"}
    with pytest.raises(ValueError, match=message):
        pmrp(**arguments | changes)


def test_codes_of_half_precision_and_with_a_graph():
    similarity, codes = np.array([[0.9, 0.1, 0.3], [0.8, 0.4, 0.2]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    expected = pmrp(similarity, [0, 1, 1], codes.numpy(), "pcme")
    assert pmrp(similarity, [0, 1, 1], codes.bfloat16().requires_grad_(), "pcme") == expected
