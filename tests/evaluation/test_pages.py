"""Pages of one and of two models: their content, the choice of queries, and that captions are escaped."""

import json

import numpy as np
import pytest
from PIL import Image

from bcls.data.dataset import open_dataset
from bcls.evaluation.evaluator import CaptionVectors, compare, evaluate
from bcls.evaluation.pages import (
    SHOWN,
    WRONG,
    bins,
    comparison_page,
    evaluation_page,
    hardest,
    most_different,
    rank_histogram,
    ranking,
)
from bcls.evaluation.recall import QueryRanks, query_ranks
from bcls.labels.relevance import relevance
from bcls.reports.html import THUMBNAIL
from tests.reports.page_reader import charts_of, check_page_is_closed

EVIL = (
    '</p><script>alert(1)</script><img src="http://x.example/a.png" onerror="alert(2)">" \' & &amp; <style>*{}</style>'
)


THINGS = ("dog", "cat", "car", "bus", "man", "tree")


def make_data(folder, images=6, each=2):
    """A dataset without photos: ``images`` in ``test`` with ``each`` captions, and one image in ``val``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "image_id": str(n),
            "caption_id": str(100 * n + k),
            "text": f"a {THINGS[n % len(THINGS)]} in image {n}, caption {k}",
            "split": "test" if n < images else "val",
        }
        for n in range(images + 1)
        for k in range(each)
    ]
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps({"format": "bcls-dataset", "version": 1, "name": "made"}))
    return folder


def add_image_without_captions(folder):
    rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text(encoding="utf-8").splitlines()]
    images = {row["image_id"]: row["split"] for row in rows} | {"silent": "test"}
    lines = [json.dumps({"image_id": image, "split": split}) + "\n" for image, split in images.items()]
    (folder / "images.jsonl").write_text("".join(lines), encoding="utf-8")


def make_scores(seed=0, images=6, each=2, bonus=1.0):
    """Scores of a model that prefers the correct pairs by ``bonus`` standard deviations."""
    own = np.repeat(np.arange(images), each) == np.arange(images)[:, None]
    return (bonus * own + np.random.default_rng(seed).standard_normal(own.shape)).astype(np.float32)


OWNER = np.repeat(np.arange(40), 3)
SCORES = make_scores(images=40, each=3, bonus=0.5)
RANKS = query_ranks(SCORES, OWNER)


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
    return CaptionVectors(split, "made", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


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


def test_page_of_one_model(folder):
    read = check_page_is_closed(one_page(folder, count=4))
    assert len(read.with_class("query")) == 8
    assert ["open" in one for one in read.all("details") if "query" in one["class"]] == 2 * [True, True, False, False]
    assert len(read.with_class("captions")) >= 4
    assert len(read.with_class("images")) >= 4
    assert [chart.split(".")[0] for chart in charts_of(read)] == ["image to text", "text to image"]
    text = read.text()
    for words in ("a model", "20 images and 60 captions", "R@10", "RSUM", "median rank", "the 4 hardest"):
        assert words in text
    assert "No photo of this dataset could be read" in text
    assert "without --labels there are no pseudo labels" in text
    assert not read.with_class("wrong")


def test_ranks_on_the_page_match_the_metrics(folder):
    read = check_page_is_closed(one_page(folder, count=3))
    ranks = query_ranks(make_scores(images=20, each=3, bonus=0.5), np.repeat(np.arange(20), 3))
    shown = [word for word in read.plain if word.startswith("rank ")]
    worst = [f"rank {rank}" for own in (ranks.i2t, ranks.t2i) for rank in sorted(own.tolist(), reverse=True)[:3]]
    assert shown == worst


def test_low_labels_mark_results_as_wrong(folder):
    page = one_page(folder, labels=True, count=20)
    read = check_page_is_closed(page)
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


def test_first_correct_item_is_always_shown(folder):
    page = one_page(folder, bonus=-5.0, count=2)
    assert page.count("The first correct item:") == 4
    assert "The first correct item:" not in one_page(folder, bonus=50.0, count=2)


@pytest.mark.parametrize("labels", [False, True])
def test_captions_and_ids_are_escaped(folder, labels):
    rewrite_texts(folder, EVIL)
    add_photos(folder)
    for page in (one_page(folder, labels), two_models(folder)):
        read = check_page_is_closed(page.replace("http://x.example/a.png", "somewhere"))
        assert "alert(1)" in read.text()
        assert page.count("<script>") == 1


def test_title_is_escaped(folder):
    split = open_dataset(folder).split("test")
    scores = make_scores(images=20, each=3)
    page = evaluation_page("<b onclick='x'>&", split, scores, {"rsum": 1.0})
    assert "<b onclick='x'>&" in check_page_is_closed(page).text()


def test_photos_are_embedded_as_thumbnails(folder):
    import base64
    import io

    add_photos(folder)
    page = one_page(folder, count=2)
    photos = [one for one in check_page_is_closed(page).all("img") if "jpeg" in one["src"]]
    assert len(photos) >= 2 + 2 * 5
    for photo in photos:
        content = base64.b64decode(photo["src"].removeprefix("data:image/jpeg;base64,"))
        picture = Image.open(io.BytesIO(content))
        assert picture.size == (THUMBNAIL, THUMBNAIL // 2) == (int(photo["width"]), int(photo["height"]))
        assert photo["alt"].startswith("a ")
    assert "could not be read" not in page


def test_unreadable_photos_are_counted(folder):
    add_photos(folder, broken=range(3))
    text = check_page_is_closed(one_page(folder, count=60)).text()
    assert "3 of 20 photos could not be read and are shown by their ids: " in text


def test_page_of_two_models(folder):
    read = check_page_is_closed(two_models(folder, count=3))
    assert len(read.with_class("query")) == 6
    assert len(read.with_class("column")) == 12
    for words in (
        "A: x.npy",
        "B: y.npy",
        "A - B",
        "95 % interval",
        "that only one model ranks correctly first",
        "A is ahead in",
    ):
        assert words in read.text()


def test_two_models_with_equal_ranks(folder):
    read = check_page_is_closed(two_models(folder, seeds=(0, 0)))
    assert read.text().count("all ranks are equal") == 2
    assert not read.with_class("query")


def test_each_score_matrix_is_loaded_once(folder):
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
    read = check_page_is_closed(page)
    assert len(read.with_class("query")) == 6 + 12
    assert "silent" in read.text(), "it is still an answer, without a label"


def test_one_image_with_one_caption(tmp_path):
    split = open_dataset(make_data(tmp_path, images=1, each=1)).split("test")
    scores = np.ones((1, 1))
    read = check_page_is_closed(evaluation_page("m", split, scores, evaluate(split, scores)))
    assert len(read.with_class("query")) == 2
    assert charts_of(read) == ["image to text. 1: 1 (100.0%).", "text to image. 1: 1 (100.0%)."]


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_hardest_queries_have_the_worst_ranks(direction):
    ranks = getattr(RANKS, direction)
    found = hardest(RANKS, direction, 7)
    assert ranks[found].tolist() == sorted(ranks.tolist(), reverse=True)[:7]
    assert len(hardest(RANKS, direction, 10**6)) == len(ranks)


def test_image_without_captions_is_no_query():
    ranks = QueryRanks(np.array([0, 3, 0]), np.array([1]))
    assert hardest(ranks, "i2t", 5) == [1]
    assert most_different(ranks, QueryRanks(np.array([0, 3, 0]), np.array([1])), "i2t", 5) == []


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_most_different_queries_do_not_depend_on_the_order_of_models(direction):
    other = query_ranks(make_scores(1, images=40, each=3, bonus=0.5), OWNER)
    gap = abs(getattr(RANKS, direction) - getattr(other, direction))
    found = most_different(RANKS, other, direction, 6)
    assert gap[found].tolist() == sorted(gap.tolist(), reverse=True)[:6]
    assert most_different(other, RANKS, direction, 6) == found
    assert most_different(RANKS, RANKS, direction, 6) == []


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1", "i2", "?"])
def test_ranking_matches_a_stable_sort(dtype):
    scores = np.clip(SCORES * 3 + 5, 0, 9).astype(dtype)
    ranks = query_ranks(scores, OWNER)
    wide = scores.astype(float)
    for query in (0, 7, 39):
        found = ranking(scores, OWNER, ranks, "i2t", query)
        order = np.argsort(-wide[query], kind="stable")
        assert list(found.items) == order[:10].tolist()
        assert order[found.rank - 1] == found.correct
        assert OWNER[found.correct] == query
        found = ranking(scores, OWNER, ranks, "t2i", query)
        order = np.argsort(-wide[:, query], kind="stable")
        assert list(found.items) == order[:5].tolist()
        assert order[found.rank - 1] == found.correct == OWNER[query]


def test_ranking_of_fewer_items_than_shown():
    found = ranking(np.ones((1, 2)), np.zeros(2, dtype=int), QueryRanks(np.ones(1), np.ones(2)), "i2t", 0)
    assert found.items == (0, 1)
    assert max(SHOWN.values()) == 10


def test_labels_of_pairs_equal_the_relevance_matrix(tmp_path):
    folder = make_data(tmp_path)
    add_image_without_captions(folder)
    split = open_dataset(folder).split("test")
    labels, owner = made_labels(split), split.image_of_caption
    expected = relevance(labels.vectors, labels.vectors, owner, caption_image=owner)
    for image, row in enumerate(expected):
        assert [labels.label(image, caption) for caption in range(12)] == pytest.approx(row.tolist(), abs=1e-6)
        assert labels.label(image, int(np.flatnonzero(owner == image)[0])) == 1.0
    assert labels.label(6, 0) is None


@pytest.mark.parametrize("most", [1, 2, 5, 6, 50, 51, 1000, 25000])
def test_bins_cover_every_rank_once(most):
    ranks = [rank for low, high in bins(most) for rank in range(low, high + 1)]
    assert ranks == list(range(1, most + 1))


def test_histogram_of_ranks_counts_each_query_once():
    chart = rank_histogram("a < b", {"A": np.array([1, 1, 2, 700, 0]), "B": np.array([1, 5, 10, 11])}, 1000)
    assert chart.alt == (
        "a < b. A: 1: 2 (50.0%), 2–5: 1 (25.0%), 6–10: 0 (0.0%), 11–50: 0 (0.0%), 51–100: 0 (0.0%), "
        "101–500: 0 (0.0%), 501–1,000: 1 (25.0%). B: 1: 1 (25.0%), 2–5: 1 (25.0%), 6–10: 1 (25.0%), "
        "11–50: 1 (25.0%), 51–100: 0 (0.0%), 101–500: 0 (0.0%), 501–1,000: 0 (0.0%)."
    )


def test_histogram_without_queries():
    assert "1: 0 (0.0%)" in rank_histogram("none", {"": np.array([], dtype=int)}, 3).alt
