"""evaluate(): the metrics of each option."""

import numpy as np
import pytest

from bcls import evaluation
from bcls.data.dataset import open_dataset
from bcls.evaluation import evaluator as graded
from bcls.evaluation.evaluator import evaluate
from bcls.labels.encoders import load_text_encoder
from bcls.labels.relevance import relevance
from tests.evaluation.factories import add_image_without_captions, make_data, make_scores, make_split


@pytest.fixture
def split(tmp_path):
    return make_split(tmp_path / "data", images=20, each=3)


SCORES = make_scores(images=20, each=3)
OWNER = np.repeat(np.arange(20), 3)


def test_recalls_and_median_ranks_are_always_computed(split):
    metrics = evaluate(split, SCORES)
    ranks = evaluation.median_rank(SCORES, OWNER)
    expected = evaluation.recalls(SCORES, OWNER)
    expected |= {key: ranks[key] for key in ("i2t_median_rank", "t2i_median_rank")}
    assert metrics == expected
    assert 0 < metrics["rsum"] < 600


def test_folds(split):
    metrics = evaluate(split, SCORES, folds=4)
    parts = [SCORES[5 * fold : 5 * fold + 5, 15 * fold : 15 * fold + 15] for fold in range(4)]
    for key in ("i2t_r1", "t2i_r1"):
        assert metrics[key] == pytest.approx(np.mean([evaluation.recalls(one, OWNER[:15])[key] for one in parts]))
    for key in ("i2t_median_rank", "t2i_median_rank"):
        assert metrics[key] == np.mean([evaluation.median_rank(one, OWNER[:15])[key] for one in parts])
    assert metrics["t2i_r1"] > evaluate(split, SCORES)["t2i_r1"], "a smaller gallery is easier"


def test_each_option_adds_its_own_keys(split):
    plain = evaluate(split, SCORES)
    for options, key in [
        ({"intervals": True}, "i2t_r1_low"),
        ({"hubness": True}, "t2i_skew10"),
        ({"qbnorm": True}, "t2i_qbnorm_r1"),
    ]:
        metrics = evaluate(split, SCORES, **options)
        assert key in metrics
        assert key not in plain
        assert plain == pytest.approx({one: metrics[one] for one in plain})


@pytest.mark.parametrize("in_memory", [0, 1 << 30], ids=["file", "memory"])
@pytest.mark.parametrize("at_once", [1, 4 * 20 * 7, 1 << 27])
def test_graded_metrics(split, monkeypatch, in_memory, at_once):
    monkeypatch.setattr(graded, "IN_MEMORY", in_memory)
    monkeypatch.setattr(graded, "_LABEL_BLOCK", at_once)
    metrics = evaluate(split, SCORES, labels="wordllama", cs=5)
    vectors = load_text_encoder("wordllama").encode(split.texts)
    labels = relevance(vectors, vectors, OWNER, caption_image=OWNER)
    first = slice(0, None, 3)
    expected = evaluation.kendall(SCORES, labels) | evaluation.ndcg(SCORES, labels, negative="clip")
    expected |= evaluation.coherent_score(SCORES[:, first], labels[:, first], 5)
    assert expected == pytest.approx({key: metrics[key] for key in expected}, abs=1e-3)
    assert "i2t_tau_b" in expected


def test_caption_vectors_without_the_name_of_an_encoder(split):
    vectors = graded.CaptionVectors(split, "wordllama")
    assert evaluate(split, SCORES, captions=vectors, cs=5) == evaluate(split, SCORES, labels="wordllama", cs=5)


def test_temporary_labels_are_removed(split, monkeypatch, tmp_path):
    import tempfile

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(graded, "IN_MEMORY", 0)
    with graded.pseudo_labels(split, graded.CaptionVectors(split, "wordllama")) as labels:
        assert isinstance(labels, np.memmap)
        assert (labels[OWNER, np.arange(60)] == 1.0).all()
        assert len(list((tmp_path / "temporary").iterdir())) == 1
    assert list((tmp_path / "temporary").iterdir()) == []


def test_the_usual_k(split, tmp_path):
    assert "i2t_cs20" in evaluate(split, SCORES, labels="wordllama")
    large = make_split(tmp_path / "large", images=110, each=1)
    assert "i2t_cs100" in evaluate(large, make_scores(images=110, each=1), labels="wordllama")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 0}, "`folds`: expected a whole number not below 1"),
        ({"folds": 3}, "`folds`: expected a divisor of the 20 images"),
        ({"folds": 5, "intervals": True}, "`intervals`: expected the whole gallery, without folds"),
        ({"folds": 5, "hubness": True}, "`hubness`: expected the whole gallery, without folds"),
        ({"folds": 5, "qbnorm": True}, "`qbnorm`: expected the whole gallery, without folds, got 5 folds"),
        ({"labels": "wordllama", "cs": "x"}, "`cs`: expected a whole number not below 2, got 'x'"),
        ({"cs": 5}, "`cs`: expected labels for the coherent score"),
        ({"labels": "wordllama", "cs": 21}, "`cs`: expected a number from 2 to 20"),
        ({"labels": "wordllama", "cs": 1}, "`cs`: expected a whole number not below 2"),
        ({"labels": "wordlama"}, "`labels`: expected 'minilm', 'wordllama'"),
    ],
)
def test_invalid_options(split, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate(split, SCORES, **options)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((60, 20), r"got \(60, 20\); it is transposed"),
        ((40, 60), r"expected shape \(20, 60\), the images and captions of the split, got \(40, 60\)"),
        ((20, 30), r"got \(20, 30\); .* cut to its first items"),
        ((20,), r"got \(20,\); rows are images"),
    ],
)
def test_a_matrix_of_another_split(split, shape, message):
    with pytest.raises(ValueError, match=f"^`similarity`: .*{message}"):
        evaluate(split, np.zeros(shape))


def test_no_matrix_at_all(split):
    with pytest.raises(ValueError, match=r"^`similarity`: expected a matrix .* got list"):
        evaluate(split, SCORES.tolist())


@pytest.mark.parametrize("each", [1, 3])
def test_one_image(tmp_path, each):
    split = make_split(tmp_path, images=1, each=each)
    options = {"labels": "wordllama", "intervals": True, "hubness": True, "qbnorm": True}
    metrics = evaluate(split, make_scores(images=1, each=each), **options)
    assert (metrics["rsum"], metrics["i2t_median_rank"]) == (600.0, 1.0)
    assert np.isnan(metrics["t2i_tau_a"]), "one image has no order"
    assert not [key for key in metrics if "_cs" in key]
    with pytest.raises(ValueError, match="`cs`"):
        evaluate(split, make_scores(images=1, each=each), labels="wordllama", cs=2)


def test_an_image_without_captions(tmp_path):
    add_image_without_captions(make_data(tmp_path))
    split = open_dataset(tmp_path).split("test")
    scores = np.vstack([make_scores(), np.zeros(12)])
    assert evaluate(split, scores)["i2t_r10"] == 100.0
    with pytest.raises(ValueError, match=r"a caption for every image of the split, got 1 without \(silent\)"):
        evaluate(split, scores, labels="wordllama")


def test_a_tiny_split(tmp_path):
    split = make_split(tmp_path, images=1, each=1)
    metrics = evaluate(split, np.zeros((1, 1)), intervals=True, hubness=True, qbnorm=True)
    assert metrics["rsum"] == 600.0
    assert np.isnan(metrics["i2t_skew1"])


def test_eccv_needs_ids_of_coco(split, tmp_path):
    pytest.importorskip("eccv_caption", reason='needs pip install "bcls[eval]"')
    with pytest.raises(ValueError, match=r"COCO 5K test split, each once, got 20 unknown \(0, 1, 2, \.\.\.\)"):
        evaluate(split, "no.npy", eccv=True)  # before the scores are read


def test_eccv_lists_non_numeric_ids(tmp_path):
    add_image_without_captions(make_data(tmp_path))
    split = open_dataset(tmp_path).split("test")
    with pytest.raises(ValueError, match=r"`eccv`: .* got 1 of 7 image ids that are no numbers \(silent\)"):
        evaluate(split, np.vstack([make_scores(), np.zeros(12)]), eccv=True)


def test_eccv_gets_the_ids_of_rows_and_columns(split, monkeypatch):
    seen = {}

    def record(similarity, image_ids, caption_ids):
        seen.update(images=image_ids, captions=caption_ids)
        return {"eccv_r1_i2t": 12.5}

    monkeypatch.setattr(graded, "eccv_metrics", record)
    monkeypatch.setattr(graded, "check_coco_ids", lambda image_ids, caption_ids: None)
    assert evaluate(split, SCORES, eccv=True)["eccv_r1_i2t"] == 12.5
    assert seen["images"].tolist() == list(range(20))
    assert seen["captions"].tolist() == [100 * n + k for n in range(20) for k in range(3)]
