import os
from pathlib import Path

import numpy as np
import pytest

from bcls.data.dataset import open_dataset
from bcls.evaluation.statistics import human_correlation
from bcls.experiments.metrics import human_agreement, read_judgements
from tests.evaluation.factories import make_data

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


def test_figures_are_those_of_the_rows(made):
    folder, dataset = made
    judgements = read_judgements(folder, dataset, folder / "choice.txt")
    figures = human_agreement(judgements, scores)
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
            assert figures[f"{part}_{name}_{tau}"] == pytest.approx(expected)


def test_only_the_photos_to_choose_on_are_looked_at(made):
    folder, dataset = made
    judgements = read_judgements(folder, dataset, folder / "choice.txt")
    seen = []

    def watching(photos, texts):
        seen.extend(photos)
        return scores(photos, texts)

    assert human_agreement(judgements, watching, ("choice",)).keys() == {"choice_expert_tau_c", "choice_crowd_tau_b"}
    assert seen == ["1", "4"]


def test_without_a_list_there_are_no_parts(made):
    folder, dataset = made
    judgements = read_judgements(folder, dataset, None)
    assert human_agreement(judgements, scores).keys() == {"judged_expert_tau_c", "judged_crowd_tau_b"}
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


@pytest.mark.skipif("BCLS_DATA" not in os.environ, reason="BCLS_DATA is not set: no Flickr8k")
def test_the_list_is_of_judged_photos():
    lines = (
        (Path(os.environ["BCLS_DATA"]) / "flickr8k" / "ExpertAnnotations.txt").read_text(encoding="utf-8").splitlines()
    )
    judged = {line.split("\t")[0] for line in lines}
    assert len(judged) == 500
    assert set(CHOICE.read_text(encoding="utf-8").split()) < judged
