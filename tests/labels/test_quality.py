"""Labels against people: the readers, the pairs, the figures and the command."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bcls.cli import main as cli
from bcls.labels import load_text_encoder, relevance
from bcls.labels.judgements import read_captions, read_judgements
from bcls.labels.pairs import pair_relevance
from bcls.labels.quality import _interval, label_quality

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
def test_pairs_equal_the_whole_matrix(aggregate, owners, seed):
    owners = np.unique(owners, return_inverse=True)[1]
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(len(owners), 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    whole = relevance(vectors, vectors, owners, owners if aggregate == "max" else None, aggregate)
    images = generator.integers(0, owners.max() + 1, size=20)
    captions = generator.integers(0, len(owners), size=20)
    found = pair_relevance(vectors, owners, images, captions, aggregate)
    np.testing.assert_allclose(found, whole[images, captions], atol=1e-6)


def test_paired_takes_the_caption_itself_or_the_first():
    vectors = np.eye(4, dtype=np.float32)[[0, 1, 0, 3]]
    owners = np.array([0, 0, 1, 1])
    found = pair_relevance(vectors, owners, np.array([0, 0, 0, 1]), np.array([1, 2, 3, 0]), "paired")
    assert found.tolist() == [1.0, 1.0, 0.0, 1.0]


def test_rows_of_the_table(files):
    rows = label_quality(files / "sits.csv.gz", files / "captions.json", ["wordllama"], ["max", "mean"])
    assert [(row.encoder, row.aggregate, row.subset, row.pairs) for row in rows] == [
        ("wordllama", "max", "all", 18),
        ("wordllama", "max", "others", 12),
        ("wordllama", "mean", "all", 18),
        ("wordllama", "mean", "others", 12),
    ]
    vectors = load_text_encoder("wordllama").encode(TEXTS)
    # The same pairs as the file; from the same function, for a cosine that occurs twice must tie with itself.
    labels = pair_relevance(vectors, np.arange(6) // 2, np.tile(np.arange(3), 6), np.repeat(np.arange(6), 3))
    people = np.array([5.0 if image == k // 2 else 0.3 * k for k in range(6) for image in range(3)])
    assert rows[0].pearson == pytest.approx(stats.pearsonr(labels, people).statistic, abs=1e-6)
    assert rows[0].spearman == pytest.approx(stats.spearmanr(labels, people).statistic, abs=1e-6)
    assert rows[0].low <= rows[0].pearson <= rows[0].high


def test_interval_resamples_images():
    """Against a plain loop over draws; and pairs of one image tell less than as many of different ones."""
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
    words = ["labels", "quality", "--cxc", str(files / "sits.csv.gz"), "--captions", str(files / "captions.json")]
    assert cli.main([*words, "--encoder", "wordllama", "--aggregate", "max", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"encoder", "aggregate", "pairs", "pearson", "spearman", "low", "high"} <= set(rows[0])
    assert cli.main([*words, "--encoder", "wordllama,wordllama"]) == 0
    assert capsys.readouterr().out.count("wordllama") == 4


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("captions.json", "[{}]", "--captions"),
        ("captions.json", "no json", "--captions"),
        ("captions.json", json.dumps([{"caption_id": 1, "image_id": 7, "caption": "x"}]), "18 of 18 pairs without"),
        ("sits.csv.gz", "image,score\n", "without caption, agg_score"),
        ("sits.csv.gz", "caption,image,agg_score\nx1,x2,high\n", "line 2"),
        ("sits.csv.gz", "caption,image,agg_score\nnone,x2,1\n", "no number in 'none'"),
    ],
)
def test_bad_files(files, name, content, says, capsys):
    (files / name).write_text(content)
    words = ["labels", "quality", "--cxc", str(files / "sits.csv.gz"), "--captions", str(files / "captions.json")]
    assert cli.main([*words, "--encoder", "wordllama"]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], ""),
        (["qualty"], "did you mean 'quality'"),
        (["quality", "--cxc", "a", "--captions", "b", "--encoder", ","], "--encoder"),
        (["quality", "--cxc", "nowhere.csv", "--captions", "nowhere.json"], "nowhere"),
    ],
)
def test_bad_usage(words, says, capsys):
    assert cli.main(["labels", *words]) == 2
    assert says in capsys.readouterr().err


def test_help(capsys):
    assert cli.main(["labels", "--help"]) == 0
    assert "quality" in capsys.readouterr().out


def test_readers_take_plain_and_packed(files):
    judged = read_judgements(files / "sits.csv.gz")
    assert len(judged.scores) == 18
    assert judged.image_ids[:3].tolist() == [7, 8, 9]
    texts = read_captions(files / "captions.json")
    assert texts.caption_ids[-1] == 100
    assert texts.texts[-1] == "a dog runs"
