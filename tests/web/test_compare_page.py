"""The compare view."""

import re
from types import SimpleNamespace

import pytest

from bcls.web.pages import _model_name, _normalized
from bcls.web.site import PairLabels
from tests.web.factories import ColourWords

PART = {"x-fragment": "1"}


def columns(text):
    return re.findall(r'<section class="column">.*?</section>', text, re.DOTALL)


def test_a_caption_of_the_dataset(client):
    text = client.get("/compare?q=A%20red%20wall.", headers=PART).text
    first, second = columns(text)
    assert "first (index)" in first
    assert "second (other)" in second
    for column in (first, second):
        assert column.count("<li") == 10
        truth = re.findall(r'<li class="truth">.*?</li>', column, re.DOTALL)
        assert len(truth) == 1
        assert 'href="/photo/1"' in truth[0]
        place = int(re.search(r"first match has rank (\d+)", column)[1])
        assert f'<span class="place">{place}.</span>' in truth[0]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("photo", "photo (index)"),
        ("/models/clip/", "clip (index)"),
        ("runs/bcls/checkpoints/best", "bcls (index)"),
        ("checkpoints/best", "best (index)"),
    ],
)
def test_model_of_a_run_has_the_name_of_the_run(model, name, tmp_path):
    index = SimpleNamespace(manifest=SimpleNamespace(model=model), folder=tmp_path / "index")
    assert _model_name(SimpleNamespace(index=index)) == name


def test_labels_and_wrong_marks(client):
    first, _ = columns(client.get("/compare?q=blue%20blue", headers=PART).text)
    items = dict(re.findall(r'href="/photo/(\d+)".*?</a>(.*?)</li>', first, re.DOTALL))
    captioned = {number: re.search(r"\[(-?[\d.]+)\]", item) for number, item in items.items()}
    labels = {number: float(found[1]) for number, found in captioned.items() if found}
    assert labels
    for number, value in labels.items():
        captions = client.get(f"/api/photos/{number}").json()["captions"]
        vectors = ColourWords().encode([*captions, "blue blue"])
        assert abs(value - (vectors[:-1] @ vectors[-1]).max()) < 0.006
        assert ("✗ wrong" in items[number]) == (value < 0.2)
    assert min(labels.values()) < 0.2 < max(labels.values())
    assert "None of the first 12 photos has this text as a caption." in first


def test_captions_for_a_photo(client):
    first, second = columns(client.get("/compare?photo=1", headers=PART).text)
    for column in (first, second):
        assert column.count('<li class="truth">') == 2
        assert "all red &lt;script&gt;" in column
    assert client.get("/compare?photo=999").status_code == 404
    assert client.get("/compare?photo=0").status_code == 422


def test_page_without_a_query(client):
    assert "Type a caption of the dataset" in client.get("/compare", headers={"accept": "text/html"}).text


def test_labels_are_the_maximum_over_captions_and_cached():
    calls = []

    class Counting(ColourWords):
        def encode(self, texts, progress=None):
            calls.append(list(texts))
            return super().encode(texts)

    labels = PairLabels(Counting())
    values = labels.of([(("red", "blue"), "blue"), ((), "red"), (("red",), "blue")])
    assert values[0] == 1
    assert values[1] is None
    assert 0 < values[2] < 0.05
    assert labels.of([(("red",), "red")]) == [1.0]
    assert calls == [["red", "blue"]]


def test_normalized_texts():
    assert _normalized(" A  dog runs .") == _normalized("a dog runs")


def test_legend_states_the_threshold(client, monkeypatch):
    monkeypatch.setattr("bcls.web.pages.WRONG", 0.35)
    assert "pseudo label below 0.35<" in client.get("/compare?q=blue", headers=PART).text
