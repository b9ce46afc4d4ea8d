"""Scores of saved models and training runs on a split."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bcls.data.dataset import open_dataset
from bcls.data.vocabulary import Vocabulary
from bcls.evaluation import compare, evaluate, query_ranks
from bcls.evaluation.scores import is_model, load_similarity
from bcls.models import base, build, load
from bcls.training.train import train
from tests.data.factories import make_dataset
from tests.evaluation.factories import make_data as make_data_without_features
from tests.training.factories import WIDTH, WORDS, make_data, settings

VOCABULARY = Vocabulary.build([" ".join(WORDS)], threshold=1)
SMALL = {"features": WIDTH, "width": 8, "word_width": 4}
KINDS = {
    "vsepp": {"name": "vsepp", **SMALL},
    "sgr": {"name": "sgr", **SMALL, "similarity_width": 3, "regions": 4},
    "dual": {"name": "dual", "image": "features", "text": "gru", "states": 8, "word_width": 4, "width": 8,
             "features": WIDTH},
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Datasets with vectors, and with four regions an image."""
    folder = tmp_path_factory.mktemp("model_scores")
    return {regions: make_data(folder / f"data{regions}", images=28, regions=regions) for regions in (0, 4)}


@pytest.fixture(params=[1, 3, 1000], ids=["one by one", "uneven blocks", "whole"])
def block(request, monkeypatch):
    monkeypatch.setattr(base, "ENCODE_BATCH", request.param)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(kind, folder="model", seed=0):
    torch.manual_seed(seed)
    build(KINDS[kind], vocabulary=VOCABULARY).save_pretrained(folder)
    return str(folder)


def split_of(data, kind):
    return open_dataset(data[4 if kind == "sgr" else 0]).split("val")


def by_hand(name, split, features="made"):
    """Every pair on its own."""
    model, rows = load(name), split.features(features)
    pairs = [
        [model.similarity(torch.from_numpy(rows.take([n])), [text])[0, 0] for text in split.texts]
        for n in range(len(split.images))
    ]
    return np.array(pairs, dtype=np.float32)


@pytest.mark.usefixtures("here", "block")
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_model(data, kind):
    split = split_of(data, kind)
    name = saved(kind)
    scores = load_similarity([name], split, features="made")
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, by_hand(name, split), atol=1e-5)
    assert scores.std() > 1e-3


@pytest.mark.usefixtures("here")
def test_padded_regions_do_not_count(data, tmp_path):
    """Numbers of regions reach the model: what lies behind an image's last region changes nothing."""
    import json
    import shutil

    folder = shutil.copytree(data[4], tmp_path / "counted")
    rows = np.load(folder / "val.npy")
    np.save(folder / "counts.npy", np.full(len(rows), 3))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["features"]["made"]["val"]["counts"] = "counts.npy"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    name, found = saved("sgr"), []
    for filler in (0.0, 9.0):
        rows[:, 3] = filler
        np.save(folder / "val.npy", rows)
        found.append(load_similarity([name], open_dataset(folder).split("val"), features="made"))
    np.testing.assert_array_equal(*found)
    plain = load_similarity([name], split_of(data, "sgr"), features="made")
    assert np.abs(found[0] - plain).max() > 1e-5


@pytest.mark.usefixtures("here")
def test_several_models_are_averaged(data):
    split = split_of(data, "vsepp")
    names = [saved("vsepp", "a", seed=1), saved("dual", "b", seed=2)]
    np.save("c.npy", np.ones((len(split.images), len(split.captions)), np.float32))
    each = [load_similarity([name], split, features="made") for name in names]
    together = load_similarity([*names, "c.npy"], split, features="made")
    np.testing.assert_allclose(together, (each[0] + each[1] + 1) / 3, atol=1e-6)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A run's folder."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    model = {"name": "vsepp", "width": 8, "word_width": 4}
    train(settings(data[0], folder, model=model, word_threshold=1, keep_epochs=True))
    return folder


def test_a_run_knows_its_features(data, run):
    split = open_dataset(data[0]).split("val")
    scores = load_similarity([str(run)], split)
    np.testing.assert_allclose(scores, by_hand(run, split), atol=1e-5)
    np.testing.assert_array_equal(scores, load_similarity([str(run / "checkpoints" / "best")], split))
    first = load_similarity([str(run / "checkpoints" / "epoch-1")], split)
    np.testing.assert_allclose(first, by_hand(run / "checkpoints" / "epoch-1", split), atol=1e-5)
    with pytest.raises(ValueError, match="did you mean 'made'"):
        load_similarity([str(run)], split, features="mad")


def test_a_run_reproduces_its_validation_metrics(data, run):
    from bcls.evaluation.recall import recalls
    from bcls.training.metrics_log import read_metrics

    split = open_dataset(data[0]).split("val")
    best = [line for line in read_metrics(run) if line["kind"] == "validation" and line["best"]][-1]
    found = recalls(load_similarity([str(run)], split), split.image_of_caption)
    assert found == {key: best[key] for key in found}


def test_images(tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite_pytorch", reason='needs pip install "bcls[photos]"')
    rows = [
        {"image_id": f"i{n}", "caption_id": f"i{n}#{k}", "text": f"a dog {'runs' * k}", "split": "test"}
        for n in range(3)
        for k in range(2)
    ]
    split = open_dataset(make_dataset(tmp_path / "data", rows=rows)).split("test")
    plain = {"name": "vsepp", "backbone": "efficientnet-lite0", "width": 8, "word_width": 4}
    model = build(plain, vocabulary=VOCABULARY)
    model.save_pretrained(tmp_path / "model")
    monkeypatch.setattr(base, "ENCODE_BATCH", 2)
    scores = load_similarity([str(tmp_path / "model")], split)
    expected = model.similarity([split.read_image(one) for one in split.image_ids], split.texts)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert np.ptp(scores, axis=0).max() > 1e-6, "the pictures differ"


@pytest.mark.usefixtures("here")
def test_errors_name_the_expected_and_the_given_shape(data, tmp_path):
    vectors, regions = (open_dataset(data[number]).split("val") for number in (0, 4))
    torch.manual_seed(0)
    build({**KINDS["vsepp"], "features": 9}, vocabulary=VOCABULARY).save_pretrained("wide")
    message = r"`wide` does not read the features 'made' of made: .*expected features \(N, 9\).*, got \(1, 6\)"
    with pytest.raises(ValueError, match=message):
        load_similarity(["wide"], vectors, features="made")
    name = saved("sgr", "cross")
    with pytest.raises(ValueError, match=r"`cross` does not read .*regions \(N, R, 6\), got \(1, 6\), global vectors"):
        load_similarity([name], vectors, features="made")
    with pytest.raises(ValueError, match=r"`cross`: expected the name of the features .*one of made"):
        load_similarity([name], regions)
    plain = open_dataset(make_data_without_features(tmp_path / "plain")).split("test")
    with pytest.raises(ValueError, match="made has none: extract them first"):
        load_similarity([name], plain)
    build({**KINDS["vsepp"], "words": 20}).save_pretrained("wordless")
    with pytest.raises(ValueError, match=r"`wordless` does not read captions: .*vocabulary"):
        load_similarity(["wordless"], vectors, features="made")


@pytest.mark.usefixtures("here")
def test_weights_that_are_not_finite(data):
    model = build(KINDS["vsepp"], vocabulary=VOCABULARY)
    torch.nn.init.constant_(model.fc.weight, float("nan"))
    model.save_pretrained("broken")
    with pytest.raises(ValueError, match="`broken`: expected finite numbers, got nan in row 0"):
        load_similarity(["broken"], split_of(data, "vsepp"), features="made")


@pytest.mark.usefixtures("here")
def test_names_of_models(data, run):
    saved("vsepp")
    Path("embeddings").mkdir()
    Path("scores.txt").write_text("1 2")
    assert is_model(str(run))
    assert is_model("model")
    assert is_model("photo")
    assert is_model("owner/model")
    for other in ("embeddings", "no.npy", "no.npz:key", "no.npy.gz", "scores.txt"):
        assert not is_model(other)
    with pytest.raises(ValueError, match="`--a`: expected 'photo', 'photo-fast', the folder of a model or of a run"):
        load_similarity(["modle"], split_of(data, "vsepp"), "--a")


def test_a_run_without_readable_settings(data, run, tmp_path):
    import shutil

    broken = shutil.copytree(run, tmp_path / "broken")
    (broken / "config.yaml").write_text("a: [", encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.yaml`: expected a YAML file"):
        load_similarity([str(broken)], open_dataset(data[0]).split("val"))


def test_an_unknown_home_folder():
    assert is_model("~nosuchuser/x")


@pytest.mark.usefixtures("here")
def test_evaluate_and_compare_take_models_names_and_files(data):
    split = split_of(data, "vsepp")
    name, other = saved("vsepp", "a", seed=1), saved("vsepp", "b", seed=2)
    scores = load_similarity([name], split, features="made")
    np.save("scores.npy", scores)
    expected = evaluate(split, scores)
    for model in (name, Path("scores.npy"), load(name)):
        assert evaluate(split, model, features="made") == expected
    both = evaluate(split, ["scores.npy", other], features="made")
    assert both == evaluate(split, load_similarity(["scores.npy", other], split, features="made"))
    ranks = query_ranks(scores, split.image_of_caption)
    assert compare(split, name, load(other), features="made") == compare(split, ranks, other, features="made")
    with pytest.raises(ValueError, match="`model`: expected"):
        evaluate(split, "modle")
