from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from bcls.data.dataset import open_dataset
from bcls.data.synthetic import load, true_relevance
from bcls.data.vocabulary import tokenize
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls
from bcls.evaluation.statistics import human_correlation
from bcls.experiments.metrics import (
    draw_scenes,
    human_agreement,
    on_device,
    other_label_metrics,
    read_judgements,
    split_metrics,
)
from bcls.experiments.run import SharedData
from bcls.labels.caption_metrics import CiderD
from tests.evaluation.factories import make_data
from tests.experiments.factories import data
from tests.samples import DATA, needs_full


def test_synthetic_scenes_have_tau_against_the_true_relevance(tmp_path):
    draw_scenes(tmp_path / "scenes", 40)
    split = open_dataset(tmp_path / "scenes").split("test")
    drawn = load(tmp_path / "scenes")
    truth = true_relevance(drawn.scenes[-len(split.images) :], drawn.captions[-len(split.captions) :])
    scores = truth + np.random.default_rng(0).normal(0, 0.05, truth.shape)
    metrics, ranks = split_metrics(split, scores)
    taus = kendall(scores, truth)
    assert metrics["true_tau"] == pytest.approx((taus["i2t_tau_a"] + taus["t2i_tau_a"]) / 2)
    assert "tau" not in metrics
    assert len(ranks.i2t) == len(split.images)


def test_folds_are_added_and_labels_bring_tau(tmp_path):
    shared = SharedData(data(tmp_path / "data"), tmp_path / "shared")
    split = shared.dataset.split("test")
    scores = np.random.default_rng(0).random((len(split.images), len(split.captions))).astype(np.float32)
    metrics, _ = split_metrics(split, scores, shared.captions(split, "wordllama"), folds=4)
    assert metrics["rsum"] == recalls(scores, split.image_of_caption)["rsum"]
    assert metrics["fold_rsum"] == recalls(scores, split.image_of_caption, folds=4)["rsum"]
    assert metrics["tau"] == pytest.approx((metrics["i2t_tau_a"] + metrics["t2i_tau_a"]) / 2)
    assert all(np.isfinite(value) for value in metrics.values())


class OnGpu(torch.Tensor):
    """Scores that say they were sent to a GPU, where there is none."""

    def cuda(self):
        return "on the GPU"


@pytest.mark.parametrize(
    ("device", "there", "sent"),
    [("auto", True, True), ("cuda", True, True), ("cpu", True, False), ("auto", False, False), ("cpu", False, False)],
)
def test_a_gpu_is_used_if_available_and_allowed(monkeypatch, device, there, sent):
    scores = np.zeros((2, 4), np.float32)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch, "from_numpy", lambda array: torch.tensor(array).as_subclass(OnGpu))
    found = on_device(scores, device)
    assert found == "on the GPU" if sent else found is scores


def test_metrics_do_not_use_a_gpu_with_device_cpu(tmp_path, monkeypatch):
    shared = SharedData(data(tmp_path / "data"), tmp_path / "shared")
    split = shared.dataset.split("test")
    scores = np.random.default_rng(0).random((len(split.images), len(split.captions))).astype(np.float32)
    plain, _ = split_metrics(split, scores)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # what is sent there raises on a machine without one
    assert split_metrics(split, scores, device="cpu")[0] == plain


ROOT = Path(__file__).parents[2]
CHOICE = ROOT / "configs" / "flickr8k" / "judged_choice.txt"


@pytest.fixture
def made(tmp_path):
    dataset = open_dataset(make_data(tmp_path / "data"))
    draw = np.random.default_rng(0)
    pairs = [(str(a), f"{b}#{k}") for a in range(6) for b in range(6) for k in range(2)]
    expert = [f"{photo}\t{caption}\t" + "\t".join(map(str, draw.integers(1, 5, 3))) for photo, caption in pairs]
    crowd = [
        f"{photo}\t{caption}\t{yes / 3}\t{yes}\t{3 - yes}" for photo, caption in pairs for yes in draw.integers(0, 4, 1)
    ]
    (tmp_path / "ExpertAnnotations.txt").write_text("\n".join(expert) + "\n", encoding="utf-8")
    (tmp_path / "CrowdFlowerAnnotations.txt").write_text("\n".join(crowd) + "\n", encoding="utf-8")
    (tmp_path / "choice.txt").write_text("1\n4\n", encoding="utf-8")
    return tmp_path, dataset


def scores(photos, texts):
    """Differ by photo and text, whatever the order and number they come in."""
    return np.array([[np.sin(hash((photo, text)) % 1000) for text in texts] for photo in photos])


def test_agreement_is_that_of_the_rated_pairs(made):
    folder, dataset = made
    judgements = read_judgements(folder, dataset, folder / "choice.txt")
    metrics = human_agreement(judgements, scores)
    text = dict(zip(judgements.caption_ids, judgements.texts, strict=True))
    for part, keep in (
        ("judged", lambda one: True),
        ("choice", {"1", "4"}.__contains__),
        ("report", set("0235").__contains__),
    ):
        for name, tau in (("expert", "tau_c"), ("crowd", "tau_b")):
            rows = judgements.ratings[name]
            kept = [row for row, photo in enumerate(rows.photos.tolist()) if keep(photo)]
            found = [float(scores([rows.photos[row]], [text[rows.caption_ids[row]]])[0, 0]) for row in kept]
            expected = human_correlation(found, rows.ratings[kept], resamples=0)[tau]
            assert metrics[f"{part}_{name}_{tau}"] == pytest.approx(expected)
    by_photo = {}
    assert human_agreement(judgements, scores, by_photo=by_photo) == metrics
    assert {key: len(values) for key, values in by_photo.items()} == {"report_expert_tau_c": 4}


def test_retrieval_of_what_people_found_to_fit(made):
    folder, dataset = made
    judgements = read_judgements(folder, dataset, folder / "choice.txt")
    metrics = human_agreement(judgements, scores)
    lines = (folder / "ExpertAnnotations.txt").read_text(encoding="utf-8").splitlines()
    fits = {tuple(line.split("\t")[:2]) for line in lines if sum(map(int, line.split("\t")[2:])) >= 9}
    lines = (folder / "CrowdFlowerAnnotations.txt").read_text(encoding="utf-8").splitlines()
    fits |= {tuple(line.split("\t")[:2]) for line in lines if float(line.split("\t")[2]) > 0.5}
    # Own captions always fit; their ratings are not read, as in CLIPScore.
    fits = {(photo, one) for photo, one in fits if one.partition("#")[0] != photo}
    fits |= {(one.partition("#")[0], one) for one in judgements.caption_ids}
    assert fits == judgements.fitting_pairs()
    photos = sorted("0235")  # the photos for reporting
    matrix = scores(photos, judgements.texts)
    for direction, queries, items, rows in (
        ("i2t", photos, judgements.caption_ids, matrix),
        ("t2i", judgements.caption_ids, photos, matrix.T),
    ):
        found = []
        for query, row in zip(queries, rows, strict=True):
            pairs = [(query, item) if direction == "i2t" else (item, query) for item in items]
            hits = [pairs[place] in fits for place in np.argsort(-row, kind="stable")]
            size = sum(hits)
            if size:
                precision = [sum(hits[: place + 1]) / (place + 1) for place in range(size) if hits[place]]
                found.append((sum(precision) / size, sum(hits[:size]) / size, hits[0]))
        for key, expected in zip(("map_at_r", "rprecision", "r1"), 100 * np.mean(found, axis=0), strict=True):
            assert metrics[f"report_{key}_{direction}"] == pytest.approx(expected)


def test_agreement_with_labels_of_other_encoders():
    draw = np.random.default_rng(0)
    similarity, labels = draw.random((4, 6)), draw.integers(0, 3, (4, 6)).astype(np.float32)
    metrics = other_label_metrics(similarity, {"cider": labels, "even": np.ones_like(labels)}, "cpu")
    rows = np.mean([kendalltau(a, b).statistic for a, b in zip(similarity, labels, strict=True)])
    columns = np.mean([kendalltau(a, b).statistic for a, b in zip(similarity.T, labels.T, strict=True)])
    assert metrics["cider_tau_b"] == pytest.approx((rows + columns) / 2)
    assert 0 < metrics["cider_ndcg"] < 1
    assert "even_tau_b" not in metrics  # undefined, and JSON has no NaN


def test_labels_of_other_encoders_are_those_of_the_split(tmp_path):
    shared = SharedData(data(tmp_path / "data"), tmp_path / "shared")
    split = shared.dataset.split("test")
    labels = shared.other_labels(split, "minilm")
    owner = split.image_of_caption
    cider = CiderD([tokenize(text) for text in split.texts], owner)
    expected = cider(np.arange(len(split.images)), np.arange(len(owner)))
    np.testing.assert_array_equal(labels["cider"], expected)
    assert np.all(labels["wordllama"][owner, np.arange(len(owner))] == 1)
    assert shared.other_labels(split, "wordllama").keys() == {"cider"}
    assert shared.other_labels(split, "minilm+wordllama").keys() == {"cider"}


def test_only_the_photos_to_choose_on_are_scored(made):
    folder, dataset = made
    judgements = read_judgements(folder, dataset, folder / "choice.txt")
    seen = []

    def watching(photos, texts):
        seen.extend(photos)
        return scores(photos, texts)

    found = human_agreement(judgements, watching, ("choice",))
    assert {"choice_expert_tau_c", "choice_crowd_tau_b", "choice_map_at_r_i2t", "choice_r1_t2i"} < found.keys()
    assert all(key.startswith("choice_") for key in found)
    assert seen == ["1", "4"]


def test_an_empty_list_of_photos_raises(made):
    folder, dataset = made
    (folder / "empty.txt").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=r"empty\.txt.*names of rated photos"):
        read_judgements(folder, dataset, folder / "empty.txt")


def test_without_a_list_there_are_no_parts(made):
    folder, dataset = made
    judgements = read_judgements(folder, dataset, None)
    assert all(key.startswith("judged_") for key in human_agreement(judgements, scores))
    assert human_agreement(judgements, scores, ("choice",)) == {}


def test_other_photos_are_named(made):
    folder, dataset = made
    (folder / "choice.txt").write_text("1\nelsewhere\n", encoding="utf-8")
    with pytest.raises(ValueError, match="'elsewhere'"):
        read_judgements(folder, dataset, folder / "choice.txt")
    with pytest.raises(ValueError, match="--judgements"):
        read_judgements(folder, dataset.split("val"), None)


def test_the_list_has_two_hundred_photos():
    names = CHOICE.read_text(encoding="utf-8").split()
    assert len(names) == len(set(names)) == 200
    assert names == sorted(names)


@needs_full
def test_the_list_is_of_judged_photos():
    lines = (DATA / "flickr8k" / "ExpertAnnotations.txt").read_text(encoding="utf-8").splitlines()
    judged = {line.split("\t")[0] for line in lines}
    assert len(judged) == 500
    assert set(CHOICE.read_text(encoding="utf-8").split()) < judged
