"""CIDEr-D, METEOR and SPICE of pairs, against the code that the field uses."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bcls.cli import main as cli
from bcls.labels import caption_metrics as _java
from bcls.labels.caption_metrics import CiderD, PairScorer, ptb_tokens
from bcls.labels.quality import load_cxc
from tests.samples import DATA, expect

pytest.importorskip("pycocoevalcap.cider.cider", reason='needs pip install "bcls[caption-metrics]"')

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")

TEXTS = [
    "A dog runs.",
    "A brown dog runs fast, very fast!",
    "Two trains in a station",
    "A train",
    "a man eats his lunch",
    "Lunch for a man's dog",
]
OWNERS = np.array([0, 0, 1, 1, 2, 2])
SENTENCES = st.lists(st.sampled_from(["a", "dog", "runs", "fast", "in", "the", "park"]), max_size=7)


@given(words=st.lists(SENTENCES, min_size=4, max_size=12), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_cider_equals_the_published_code(words, seed):
    from pycocoevalcap.cider.cider import Cider

    owners = np.arange(len(words)) // 2
    images = np.arange(owners.max() + 1)
    captions = np.random.default_rng(seed).integers(0, len(words), size=len(images))
    gold = {image: [" ".join(words[row]) for row in np.flatnonzero(owners == image)] for image in images.tolist()}
    candidates = {image: [" ".join(words[caption])] for image, caption in zip(images.tolist(), captions, strict=True)}
    if not any(sentence for group in gold.values() for line in group for sentence in line):
        return  # the published code takes no corpus without a word
    _, expected = Cider().compute_score(gold, candidates)
    np.testing.assert_allclose(CiderD(words, owners).pairs(images, captions), expected, atol=1e-9)


@given(words=st.lists(SENTENCES, min_size=1, max_size=12), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_cider_of_many_pairs_equals_that_of_each(words, seed):
    """Also with captions that repeat a word or are empty, and images in any order or twice."""
    draw = np.random.default_rng(seed)
    owners = draw.integers(0, 4, len(words)) * 3
    images, captions = draw.choice(owners, 3), draw.integers(0, len(words), 5)
    cider = CiderD(words, owners)
    expected = cider.pairs(np.repeat(images, 5), np.tile(captions, 3)).reshape(3, 5)
    found = cider(images, captions)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_cider_of_a_pair_does_not_depend_on_the_others():
    words = [text.lower().split() for text in TEXTS]
    images, captions = np.repeat(np.arange(3), 6), np.tile(np.arange(6), 3)
    cider = CiderD(words, OWNERS)
    together = cider.pairs(images, captions)
    alone = [cider.pairs(images[[k]], captions[[k]])[0] for k in range(18)]
    np.testing.assert_allclose(together, alone)
    assert cider.pairs(images[:0], captions[:0]).shape == (0,)


@needs_java
def test_tokens_equal_those_of_the_published_code():
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    texts = [*TEXTS, "", "a caf\u00e9 (with tables) - isn't it?", "two\nlines", "..."]
    published = PTBTokenizer().tokenize({k: [{"caption": text}] for k, text in enumerate(texts) if text})
    ours = ptb_tokens("cider", texts)
    assert {k: [line] for k, line in enumerate(ours) if texts[k]} == published
    assert ptb_tokens("cider", []) == []


@needs_java
@pytest.mark.slow
def test_meteor_equals_the_published_code():
    from pycocoevalcap.meteor.meteor import Meteor

    images, captions = np.array([0, 1, 2, 0, 0]), np.array([2, 3, 0, 1, 5])
    reports = []
    found = PairScorer("meteor").pair_scores(
        [*TEXTS, "..."], np.append(OWNERS, 2), images, captions, lambda *counts: reports.append(counts)
    )
    words = ptb_tokens("meteor", [*TEXTS, "..."])
    gold = {k: [words[row] for row in np.flatnonzero(np.append(OWNERS, 2) == image)] for k, image in enumerate(images)}
    candidates = {k: [words[caption]] for k, caption in enumerate(captions)}
    np.testing.assert_allclose(found, Meteor().compute_score(gold, candidates)[1])
    assert reports == [(5, 5)]
    # Its own caption is among the references.
    assert found[1] == pytest.approx(1.0)
    assert found[3] == pytest.approx(1.0)


def test_missing_programs_are_named(monkeypatch, capsys):
    with pytest.raises(ValueError, match="`name`: expected one of 'cider', 'meteor', 'spice', got 'meteo'; did you"):
        PairScorer("meteo")
    monkeypatch.setattr(_java.shutil, "which", lambda name: None)
    for name in ("cider", "meteor", "spice"):
        with pytest.raises(ValueError, match=f"`{name}`: expected Java, got no `java` on the path; install"):
            PairScorer(name)


@needs_java
def test_spice_names_the_missing_file(tmp_path, monkeypatch):
    monkeypatch.setattr("bcls.labels.caption_metrics.metrics_folder", lambda metric: tmp_path)
    with pytest.raises(
        ValueError, match=r"`spice`: expected Stanford CoreNLP in .*3.6.0.jar, got no such file; copy it"
    ):
        PairScorer("spice")


@needs_java
def test_cider_on_cxc_equals_the_paper():
    rated = load_cxc(DATA / "cxc" / "sits_test.csv", DATA / "coco" / "captions_karpathy_test5k.json")
    scores = PairScorer("cider").pair_scores(rated.texts, rated.image_of_caption, rated.images, rated.captions)
    assert stats.pearsonr(scores, rated.ratings).statistic == pytest.approx(expect(0.738, 0.848), abs=0.001)


@needs_java
def test_failing_tokenizer_raises(monkeypatch, tmp_path):
    monkeypatch.setattr(_java, "metrics_folder", lambda metric: tmp_path)
    with pytest.raises(ValueError, match="`cider`: expected one line of the tokenizer for every text, got 0 lines"):
        ptb_tokens("cider", TEXTS)
    assert cli.main(["labels", "quality", "--flickr8k", str(tmp_path), "--encoder", "cider"]) == 2
