"""The two pages: what stands on them, and that captions are text and nothing else."""

import json

import numpy as np
import pytest
from PIL import Image

from bcls.data.dataset import open_dataset
from bcls.evaluation.evaluator import compare, evaluate
from bcls.evaluation.pages import SIDE, WRONG, PairLabels, comparison_page, evaluation_page
from bcls.evaluation.recall import query_ranks
from tests.evaluation.factories import add_image_without_captions, make_data, make_scores
from tests.assess.page.reading import check_closed

EVIL = (
    '</p><script>alert(1)</script><img src="http://x.example/a.png" onerror="alert(2)">" \' & &amp; <style>*{}</style>'
)


@pytest.fixture
def folder(tmp_path):
    return make_data(tmp_path / "data", images=20, each=3)


def add_photos(folder, broken=()):
    """A photo for each image, wider than is shown; those in ``broken`` are no photos."""
    (folder / "photos").mkdir()
    for image in range(21):
        path = folder / "photos" / f"{image}.png"
        Image.new("RGB", (400, 200), (10 * image, 99, 0)).save(path)
        if image in broken:
            path.write_bytes(b"no photo")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"images": [{"path": "photos"}]}))


def rewrite_texts(folder, text):
    rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps(row | {"text": text}) + "\n" for row in rows]
    (folder / "captions.jsonl").write_text("".join(lines), encoding="utf-8")


def made_labels(split, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((len(split.captions), 3)).astype(np.float32)
    return PairLabels("made", vectors / np.linalg.norm(vectors, axis=1, keepdims=True), split.image_of_caption)


def one_page(folder, labels=False, bonus=0.5, **options):
    split = open_dataset(folder).split("test")
    scores = make_scores(images=20, each=3, bonus=bonus)
    chosen = made_labels(split) if labels else None
    return evaluation_page("a model", split, scores, evaluate(split, scores), labels=chosen, **options)


def two_models(folder, seeds=(0, 1), **options):
    split = open_dataset(folder).split("test")
    both = [make_scores(seed, images=20, each=3, bonus=0.5) for seed in seeds]
    ranks = [query_ranks(one, split.image_of_caption) for one in both]
    loaders = [lambda one=one: one for one in both]
    return comparison_page(["x.npy", "y.npy"], split, loaders, ranks, compare(split, *ranks), **options)


def test_the_page_of_a_model(folder):
    read = check_closed(one_page(folder, count=4))
    assert len(read.with_class("query")) == 8
    assert len(read.with_class("captions")) >= 4
    assert len(read.with_class("pictures")) >= 4
    assert len(read.all("svg")) == 2
    text = read.text()
    for words in ("a model", "20 images and 60 captions", "R@10", "RSUM", "median rank", "the 4 hardest"):
        assert words in text
    assert "No photo of this dataset could be read" in text
    assert "without --labels there are no pseudo labels" in text
    assert not read.with_class("wrong")


def test_ranks_on_the_page_are_those_of_the_figures(folder):
    read = check_closed(one_page(folder, count=3))
    ranks = query_ranks(make_scores(images=20, each=3, bonus=0.5), np.repeat(np.arange(20), 3))
    shown = [word for word in read.plain if word.startswith("rank ")]
    worst = [f"rank {rank}" for own in (ranks.i2t, ranks.t2i) for rank in sorted(own.tolist(), reverse=True)[:3]]
    assert shown == worst


def test_labels_mark_what_is_plainly_wrong(folder):
    page = one_page(folder, labels=True, count=20)
    read = check_closed(page)
    assert f"plainly wrong: pseudo label below {WRONG}" in read.text()
    for item in page.split("<li ")[1:]:
        item = item.split("</li>")[0]
        if "pseudo label" not in item or "[" not in item or "title=" not in item:
            continue
        label = float(item.split("[")[1].split("]")[0])
        if 'class="truth"' in item:
            assert label == 1.0
        elif label < WRONG - 0.005:
            assert 'class="wrong"' in item
        elif label > WRONG + 0.005:
            assert 'class="other"' in item
    assert read.with_class("wrong")
    assert read.with_class("truth")
    assert len(read.with_class("other")) > 1


def test_the_first_correct_item_is_always_there(folder):
    page = one_page(folder, bonus=-5.0, count=2)
    assert page.count("The first correct item:") == 4
    assert "The first correct item:" not in one_page(folder, bonus=50.0, count=2)


@pytest.mark.parametrize("labels", [False, True])
def test_captions_and_ids_are_text(folder, labels):
    rewrite_texts(folder, EVIL)
    add_photos(folder)
    for page in (one_page(folder, labels), two_models(folder)):
        read = check_closed(page.replace("http://x.example/a.png", "somewhere"))
        assert "alert(1)" in read.text()
        assert page.count("<script>") == 1


def test_names_are_text(folder):
    split = open_dataset(folder).split("test")
    scores = make_scores(images=20, each=3)
    page = evaluation_page("<b onclick='x'>&", split, scores, {"rsum": 1.0})
    assert "<b onclick='x'>&" in check_closed(page).text()


def test_photos_are_small_and_inside(folder):
    import base64
    import io

    add_photos(folder)
    page = one_page(folder, count=2)
    photos = check_closed(page).all("img")
    assert len(photos) >= 2 + 2 * 5
    for photo in photos:
        content = base64.b64decode(photo["src"].removeprefix("data:image/jpeg;base64,"))
        picture = Image.open(io.BytesIO(content))
        assert picture.size == (SIDE, SIDE // 2) == (int(photo["width"]), int(photo["height"]))
        assert photo["alt"].startswith("a ")
    assert "could not be read" not in page


def test_photos_that_cannot_be_read_are_counted(folder):
    add_photos(folder, broken=range(3))
    text = check_closed(one_page(folder, count=60)).text()
    assert "3 of 20 photos could not be read and are shown by their ids: " in text


def test_the_page_of_two_models(folder):
    read = check_closed(two_models(folder, count=3))
    assert len(read.with_class("query")) == 6
    assert len(read.with_class("column")) == 12
    for words in ("A x.npy", "B y.npy", "A - B", "95 % interval", "that only one model ranks correctly first", "A is ahead in"):
        assert words in read.text()


def test_two_models_that_agree(folder):
    read = check_closed(two_models(folder, seeds=(0, 0)))
    assert read.text().count("both rank every query alike") == 2
    assert not read.with_class("query")


def test_each_matrix_is_asked_for_once_and_alone(folder):
    split = open_dataset(folder).split("test")
    owner = split.image_of_caption
    both = [make_scores(seed, images=20, each=3) for seed in (0, 1)]
    ranks = [query_ranks(one, owner) for one in both]
    asked = []
    loaders = [lambda place=place: asked.append(place) or both[place] for place in (0, 1)]
    comparison_page(["x", "y"], split, loaders, ranks, compare(split, *ranks))
    assert asked == [0, 1]


def test_an_image_without_captions(tmp_path):
    folder = make_data(tmp_path)
    add_image_without_captions(folder)
    split = open_dataset(folder).split("test")
    scores = np.vstack([make_scores(), np.full(12, 9.0)])
    page = evaluation_page("m", split, scores, evaluate(split, scores), labels=made_labels(split), count=50)
    read = check_closed(page)
    assert len(read.with_class("query")) == 6 + 12
    assert "silent" in read.text(), "it is still an answer, without a label"


def test_one_image_with_one_caption(tmp_path):
    split = open_dataset(make_data(tmp_path, images=1, each=1)).split("test")
    scores = np.ones((1, 1))
    read = check_closed(evaluation_page("m", split, scores, evaluate(split, scores)))
    assert len(read.with_class("query")) == 2
    assert "1 (100.0%)" in read.text()
