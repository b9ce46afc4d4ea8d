"""The calibration that belongs to a model."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bcls.models.folder import write_calibration
from bcls.search.score_model import BACKGROUND, SETTINGS, read_calibration

GOOD = {"pair": [-2.0, 10.0], "query": [1.0, 2.0, 0.5, -0.5, 3.0], "gate": [2, 4, 0.4, 0.1], "threshold": 0.3}


@pytest.fixture
def folder(tmp_path):
    background = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float16)
    save_file({"background": background}, tmp_path / BACKGROUND)
    (tmp_path / SETTINGS).write_text(json.dumps(GOOD))
    return tmp_path


def test_formula(folder):
    calibration = read_calibration(folder)
    text = np.array([0.6, 0.0, 0.8, 0.0])
    scores = calibration.background.astype(np.float64) @ text
    nearest = 0.4 - 0.1 * np.log(0.64 / 0.36)
    known = 1 + 2 * 0.5 + 0.5 * scores.mean() - 0.5 * scores.std() + 3 * nearest
    expected = 1 / (1 + np.exp(2 - 10 * 0.5)) / (1 + np.exp(-known))
    assert calibration(0.5, text) == pytest.approx(expected, rel=1e-9)


def test_one_text_for_each_similarity(folder):
    calibration, texts = read_calibration(folder), np.eye(4)[:3]
    expected = [calibration(value, text) for value, text in zip((0.1, 0.2, 0.3), texts, strict=True)]
    np.testing.assert_allclose(calibration([0.1, 0.2, 0.3], texts), expected, rtol=1e-12)
    assert calibration([], texts[:0]).shape == (0,)


def test_order_stays_that_of_the_similarities(folder):
    values = np.linspace(-1, 1, 50)
    scores = read_calibration(folder)(values, [0.6, 0.0, 0.8, 0.0])
    assert (np.diff(scores) > 0).all()
    assert scores.min() > 0
    assert scores.max() < 1


def test_scores_for_images(folder):
    """The share of background photos that have a less similar best match, with the same text."""
    rng = np.random.default_rng(1)
    background = rng.normal(size=(200, 4))
    background /= np.linalg.norm(background, axis=1, keepdims=True)
    save_file({"background": background.astype(np.float32)}, folder / BACKGROUND)
    calibration = read_calibration(folder)
    for text in (np.zeros(4), np.array([0.3, -0.8, 0.1, 0.5])):
        best = []
        for number, photo in enumerate(background):
            query = (text + photo) / np.linalg.norm(text + photo)
            best.append(max(query @ other for place, other in enumerate(background) if place != number))
        values = np.linspace(min(best), max(best), 50)
        expected = [np.mean([one < value for one in best]) for value in values]
        np.testing.assert_allclose(calibration.score_similar(values, text), expected, atol=0.03)
    scores = calibration.score_similar(np.linspace(-1, 1, 50), np.zeros(4))
    assert (np.diff(scores) > 0).all()
    assert scores[-1] > 0.98


def test_vectors_without_a_part_have_finite_scores(folder):
    for text in ([1.0, 0, 0, 0], [0, 0, 1.0, 0]):
        assert np.isfinite(read_calibration(folder)(0.2, text))


def test_one_word_is_encoded_with_the_template(folder):
    assert read_calibration(folder).prompt("dog") == "dog"
    (folder / SETTINGS).write_text(json.dumps(GOOD | {"word": "a {}"}))
    assert [read_calibration(folder).prompt(text) for text in ("dog", "{}", "two dogs")] == [
        "a dog",
        "a {}",
        "two dogs",
    ]


def test_models_without_one(tmp_path):
    assert read_calibration(tmp_path) is None


@pytest.mark.parametrize(
    "change",
    [
        {"pair": [1.0]},
        {"pair": [0.0, -1.0]},
        {"threshold": 2.0},
        {"threshold": None},
        {"gate": [2, 9, 0.4, 0.1]},
        {"word": "a word"},
    ],
)
def test_damaged_settings_are_named(folder, change):
    (folder / SETTINGS).write_text(json.dumps(GOOD | change))
    with pytest.raises(ValueError, match=SETTINGS):
        read_calibration(folder)


def test_a_background_of_one_photo_is_named(folder):
    save_file({"background": np.ones((1, 4), np.float16)}, folder / BACKGROUND)
    with pytest.raises(ValueError, match="two or more rows"):
        read_calibration(folder)


def test_missing_background_is_named(folder):
    shutil.move(folder / BACKGROUND, folder / "other")
    with pytest.raises(ValueError, match=BACKGROUND):
        read_calibration(folder)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [SETTINGS, BACKGROUND])
@pytest.mark.parametrize("damage", [flip_a_bit, Path.unlink])
def test_changed_files_differ_from_their_hash(folder, name, damage):
    (folder / "config.json").write_text(json.dumps({"name": "dual", "sha256": {"model.safetensors": "0"}}))
    write_calibration(folder, {one: (folder / one).read_bytes() for one in (SETTINGS, BACKGROUND)})
    assert read_calibration(folder).threshold == 0.3
    assert json.loads((folder / "config.json").read_text())["sha256"]["model.safetensors"] == "0"  # not hashed again
    damage(folder / name)
    with pytest.raises(ValueError, match=rf"{name}.*(sha256|no such file)"):
        read_calibration(folder)
