"""The query service."""

import os
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from bcls.data.images import decode
from bcls.search.batcher import OverloadedError
from bcls.search.engine import IndexUnavailableError, SearchFilter, near_duplicates, parse_filter, parse_query
from bcls.search.index import open_index
from bcls.search.service import Service, ServiceSettings
from tests.search.factories import index, photo, tiny_model

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')


def test_text_to_photos(service, tmp_path):
    answer = service.search("red", k=3)
    first = answer.hits[0]
    assert first.name == "0/000-red-red.png"
    assert first.path == str(tmp_path / "photos/0/000-red-red.png")
    assert first.captions == ("a red wall", "all red")
    assert first.fits
    assert answer.fits
    assert answer.reranked == 0
    assert [hit.score for hit in answer.hits] == sorted((hit.score for hit in answer.hits), reverse=True)
    model = service.model
    everything = model.similarity(sorted((tmp_path / "photos").rglob("*.png")), ["red"])[:, 0]
    similarities = [hit.similarity for hit in service.search("red", k=12).hits]
    np.testing.assert_allclose(similarities, sorted(everything.tolist(), reverse=True), atol=1e-5)


def test_k_may_exceed_the_number_of_photos(service):
    assert len(service.search("red", k=1000).hits) == 12
    for k in (0, 1001, True):
        with pytest.raises(ValueError, match="`k`: expected"):
            service.search("red", k=k)


def test_filters(service):
    assert {hit.name[0] for hit in service.search("red", 12, parse_filter(under="1/")).hits} == {"1"}
    assert [hit.name for hit in service.search("blue", 12, parse_filter(words="above")).hits] == ["1/001-green-red.png"]
    assert service.search("red", 12, parse_filter(before="1990")).hits == ()
    assert not service.search("red", 12, parse_filter(before="1990")).fits


@pytest.mark.parametrize("text", ["", "  \n", "\0", "x" * 100_000, 3, None])
def test_invalid_texts(service, text):
    with pytest.raises(ValueError, match="`text`: expected"):
        service.search(text)


@pytest.mark.parametrize("text", ["красный", "🐕", "\ud800 red", "?", "x" * 2000])
def test_unusual_texts_are_searched(service, text):
    assert len(service.search(text, k=2).hits) == 2


@pytest.mark.parametrize("text", ["ｒｅｄ", "ＲＥＤ　", "ʳᵉᵈ"])
def test_full_width_letters(service, text):
    assert service.search(text, k=1).hits[0].name == "0/000-red-red.png"
    assert parse_filter(words="ａｂｏｖｅ") == parse_filter(words="above")


def test_query_arithmetic(service):
    vectors = {color: service.model.encode_texts([color]).numpy()[0] for color in ("red", "green", "blue")}
    photos = service.index.photos
    everything = photos.vectors(photos.numbers().tolist())
    for text, weights in (
        ("red + green", {"red": 1, "green": 1}),
        ("red - green", {"red": 1, "green": -1}),
        ("- green", {"green": -1}),
        ("＋ red － 0.25 green + 2.0 blue", {"red": 1, "green": -0.25, "blue": 2}),
    ):
        wanted = sum(weight * vectors[color] for color, weight in weights.items())
        expected = np.sort(everything @ (wanted / np.linalg.norm(wanted)))[::-1]
        similarities = [hit.similarity for hit in service.search(text, k=12).hits]
        np.testing.assert_allclose(similarities, expected, atol=1e-5)
    assert service.search("yellow + red - blue", k=1).hits[0].name == "0/003-yellow-red.png"


def test_scores_of_queries_that_subtract(service):
    """Those of the added terms, times 1 - score for each subtracted term; the order is that of the difference."""
    photos, calibrate = service.index.photos, service.index.manifest.calibration["text"]
    numbers = photos.numbers().tolist()
    vectors = {color: service.model.encode_texts([color]).numpy()[0] for color in ("red", "yellow", "blue")}

    def score(vector):
        return calibrate(photos.vectors(numbers) @ (vector / np.linalg.norm(vector)))

    for text, expected in (
        ("yellow - blue", score(vectors["yellow"]) * (1 - score(vectors["blue"]))),
        (
            "red + 0.5 yellow - 2.0 blue",
            score(vectors["red"] + 0.5 * vectors["yellow"]) * (1 - score(vectors["blue"])) ** 2,
        ),
        ("- blue", 1 - score(vectors["blue"])),
        ("0.0 red - blue", 1 - score(vectors["blue"])),
    ):
        hits = service.search(text, k=12).hits
        scores = [expected[numbers.index(hit.number)] for hit in hits]
        np.testing.assert_allclose([hit.score for hit in hits], scores, atol=1e-5)
        similarities = [hit.similarity for hit in hits]
        assert similarities == sorted(similarities, reverse=True)


def test_photos_with_the_subtracted_thing_do_not_fit(service):
    alone = {hit.name: hit for hit in service.search("red", k=12).hits}
    without = {hit.name: hit for hit in service.search("red - yellow", k=12).hits}
    assert without["1/004-black-red.png"].fits
    assert without["1/004-black-red.png"].score == pytest.approx(alone["1/004-black-red.png"].score, abs=0.02)
    assert alone["0/003-yellow-red.png"].fits
    assert not without["0/003-yellow-red.png"].fits
    by_date = service.search("red - yellow", k=12, sort="date").hits
    assert {hit.name for hit in by_date} == {hit.name for hit in without.values() if hit.fits}
    assert service.search("red - yellow", 12, parse_filter(under="0/"), sort="date").hits == tuple(
        hit for hit in by_date if hit.name.startswith("0/")
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("+", "words between the operators"),
        ("- + －", "words between the operators"),
        ("dog +", "words between the operators"),
        ("dog + 0.5", "words between the operators"),
        ("dog - dog", "terms that do not cancel each other"),
        ("a " + "+ b " * 8, "at most 8 terms, got 9"),
    ],
)
def test_invalid_arithmetic(service, text, message):
    with pytest.raises(ValueError, match=f"`text`: expected {message}"):
        service.search(text)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("a black-and-white T-shirt", [(1, "a black-and-white T-shirt")]),
        ("C++ -beach +sand", [(1, "C++ -beach +sand")]),
        ("2 dogs + .5 sandy beach", [(1, "2 dogs"), (0.5, "sandy beach")]),
        ("0.5 liters", [(1, "0.5 liters")]),
        ("dog - 1.50 man-made lake", [(1, "dog"), (-1.5, "man-made lake")]),
        ("- person + dog", [(-1, "person"), (1, "dog")]),
        ("dog \N{MINUS SIGN} cat \N{EN DASH} 0.5 person", [(1, "dog"), (-1, "cat"), (-0.5, "person")]),
        ("the years 1990\N{EN DASH}1995", [(1, "the years 1990\N{EN DASH}1995")]),
    ],
)
def test_grammar_of_queries(text, terms):
    assert parse_query(text) == terms


def test_text_combined_with_an_image(service, tmp_path):
    image = tmp_path / "photos/1/004-black-red.png"
    text, picture = service.model.encode_texts(["white"]).numpy()[0], service.model.encode_images([image]).numpy()[0]
    photos = service.index.photos
    wanted = (text + picture) / np.linalg.norm(text + picture)
    expected = np.sort(photos.vectors(photos.numbers().tolist()) @ wanted)[::-1]
    for given in (image.read_bytes(), Image.open(image)):
        hits = service.search("white", k=12, image=given).hits
        np.testing.assert_allclose([hit.similarity for hit in hits], expected, atol=1e-5)


def test_results_that_fit_sorted_by_date(service, built, tmp_path, tiny):
    for number, path in enumerate(sorted((tmp_path / "photos").rglob("*.png"))):
        os.utime(path, (1000 + number * 7 % 12, 1000 + number * 7 % 12))
    index(tmp_path / "photos", built, tiny)
    everything = service.search("red", k=12)
    fitting = [hit for hit in everything.hits if hit.fits]
    assert 1 < len(fitting) < 12
    by_date = service.search("red", k=12, sort="date")
    assert by_date.hits == tuple(sorted(fitting, key=lambda hit: -hit.date))
    assert by_date.hits != tuple(fitting)
    assert service.search("red", k=1, sort="date").hits == by_date.hits[:1]  # the newest of all that fit
    none = service.search("green", 3, parse_filter(words="wall"), sort="date")
    assert (len(none.hits), none.fits) == (1, False)
    number = service.number_of("0/000-red-red.png")
    for result in (
        service.more_like(number, sort="date"),
        service.search(image=Image.new("RGB", (8, 8)), sort="date"),
    ):
        assert [hit.date for hit in result.hits] == sorted((hit.date for hit in result.hits), reverse=True)
    with pytest.raises(ValueError, match="`sort`: expected one of 'score', 'date'"):
        service.search("red", sort="name")


def test_near_duplicates(service, built, tmp_path, tiny):
    assert service.duplicates(0.999999) == []
    source = tmp_path / "photos"
    for name in ("copy.png", "2/copy.png"):
        (source / name).write_bytes((source / "0/000-red-red.png").read_bytes())
    Image.open(source / "1/004-black-red.png").resize((16, 16)).save(source / "small.jpg", quality=90)
    for number, name in enumerate(("copy.png", "2/copy.png", "0/000-red-red.png", "small.jpg", "1/004-black-red.png")):
        os.utime(source / name, (1000 + number, 1000 + number))
    index(source, built, tiny)
    groups = [[photo.name for photo in group] for group in service.duplicates(0.995)]
    assert groups[0] == ["copy.png", "2/copy.png", "0/000-red-red.png"]
    assert ["small.jpg", "1/004-black-red.png"] in groups
    (everything,) = service.duplicates(1e-6)[:1]
    assert len(everything) > 3
    for threshold in (0, 1.5):
        with pytest.raises(ValueError, match="`threshold`: expected"):
            service.duplicates(threshold)


def test_groups_of_duplicates_are_computed_by_one_thread(service, built, tmp_path, tiny, monkeypatch):
    source = tmp_path / "photos"
    (source / "copy.png").write_bytes((source / "0/000-red-red.png").read_bytes())
    index(source, built, tiny)
    real, thresholds = near_duplicates, []

    def slow(photos, threshold):
        thresholds.append(threshold)
        time.sleep(0.2)
        return real(photos, threshold)

    monkeypatch.setattr("bcls.search.service.near_duplicates", slow)
    with ThreadPoolExecutor(6) as pool:
        groups = list(pool.map(service.duplicates, [0.99] * 6))
    assert thresholds == [0.99]
    assert groups == [service.duplicates(0.99)] * 6
    with ThreadPoolExecutor(6) as pool:
        counts = list(pool.map(lambda threshold: len(service.duplicates(threshold)[0]), [0.99, 1e-6] * 3))
    assert counts == [2, counts[1]] * 3
    assert counts[1] > 2


def test_image_to_photos(service, tmp_path):
    path = tmp_path / "photos/1/004-black-red.png"
    for given in (path.read_bytes(), Image.open(path)):
        hit = service.search(image=given, k=2).hits[0]
        assert hit.name == "1/004-black-red.png"
        assert hit.similarity == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match=r"`image`: expected an image, got 3 bytes of something else"):
        service.search(image=b"abc")
    with pytest.raises(ValueError, match=r"`image`: expected an image, got an empty file"):
        service.search(image=b"")


def test_more_like_a_photo(service):
    number = service.number_of("0/000-red-red.png")
    answer = service.more_like(number, k=3)
    assert number not in {hit.number for hit in answer.hits}
    assert len(answer.hits) == 3
    with pytest.raises(ValueError, match="`number`: expected the number of a photo in the index, got 999"):
        service.more_like(999)


def test_captions_for_images(service, tmp_path):
    number = service.number_of("0/000-red-red.png")
    answer = service.captions_for(number, k=2)
    assert {hit.text for hit in answer.hits} == {"a red wall", "all red"}
    assert answer.hits[0].number == number
    again = service.captions_for_image((tmp_path / "photos/0/000-red-red.png").read_bytes(), k=2)
    assert [hit.text for hit in again.hits] == [hit.text for hit in answer.hits]
    assert [hit.text for hit in service.captions_for(number, 5, SearchFilter(words=("green",))).hits] == [
        "green above red"
    ]


def test_captions_of_an_index_without_captions(built, tmp_path, tiny):
    index(tmp_path / "photos", built, tiny, captions=False)
    with Service(built) as service, pytest.raises(ValueError, match="`captions`: expected an index with captions"):
        service.captions_for(service.number_of("2/002-blue-red.png"))


def test_only_indexed_photos_are_opened(service, tmp_path):
    number = service.number_of("0/000-red-red.png")
    assert service.read_photo(number) == (tmp_path / "photos/0/000-red-red.png").read_bytes()
    assert service.thumbnail(number, 16).size == (16, 16)
    (tmp_path / "photos/secret.png").write_bytes(b"x")
    assert service.number_of("secret.png") is None
    assert service.number_of("../model") is None
    with pytest.raises(ValueError, match="`number`"):
        service.read_photo(10**6)


def test_a_missing_photo(service, tmp_path):
    number = service.number_of("0/000-red-red.png")
    (tmp_path / "photos/0/000-red-red.png").unlink()
    assert service.search("red", k=1).hits[0].number == number
    with pytest.raises(FileNotFoundError):
        service.read_photo(number)


def test_missing_photo_folder(built, tmp_path):
    (tmp_path / "photos").rename(tmp_path / "away")
    with Service(built) as service:
        hit = service.search("red", k=1).hits[0]
        assert hit.path == str(tmp_path / "photos/0/000-red-red.png")
        with pytest.raises(FileNotFoundError, match="the photos of the index are missing"):
            service.read_photo(hit.number)


def test_next_search_sees_an_update(service, built, tmp_path, tiny):
    first = service.search("white", k=1).hits[0].name
    photo(tmp_path / "photos/0/new.png", ["white"])
    (tmp_path / "photos" / first).unlink()
    index(tmp_path / "photos", built, tiny)
    assert service.search("white", k=1).hits[0].name == "0/new.png"
    assert len(service.search("white", k=50).hits) == 12


def test_another_model_is_rejected(built, tmp_path, monkeypatch):
    other = tiny_model(monkeypatch, tmp_path / "other", seed=3)
    with pytest.raises(ValueError, match="vectors of different models are not comparable"):
        Service(built, str(other))
    from bcls.models import load

    with pytest.raises(ValueError, match="expected the model"):
        Service(built, load(other))


def test_concurrent_queries_share_batches_and_get_their_own_results(built):
    words = ["red", "green", "blue", "yellow", "black", "white"]
    with Service(built, settings=ServiceSettings(cache=0)) as service:
        expected = {word: service.search(word, k=3) for word in words}
        sizes = []
        real = service.model.encode_texts
        # The model of the tests takes no time, so that no queries would gather.
        service.model.encode_texts = lambda texts: time.sleep(0.01) or sizes.append(len(texts)) or real(texts)
        wrong = []

        def ask(word):
            for _ in range(10):
                answer = service.search(word, k=3)
                if [hit.name for hit in answer.hits] != [hit.name for hit in expected[word].hits]:
                    wrong.append(word)

        threads = [threading.Thread(target=ask, args=(word,)) for word in words]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert sum(sizes) == 60
        assert len(sizes) < 40


def test_text_vectors_are_cached(built):
    for size, passes in ((2, 1), (0, 3)):
        with Service(built, settings=ServiceSettings(cache=size)) as service:
            calls = []
            real = service.model.encode_texts
            service.model.encode_texts = lambda texts, real=real, calls=calls: calls.append(texts) or real(texts)
            first = [service.search(" red", k=2), service.search("red", k=2), service.search("red\n", k=2)]
            assert first[0] == first[1] == first[2]
            assert len(calls) == passes


def answered(service, seconds=20):
    """Whether a query is answered eventually; a busy machine may need several attempts."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            return len(service.search("red", k=1).hits) == 1
        except OverloadedError as error:
            time.sleep(error.retry_after / 10)
    return False


def test_overload(built, monkeypatch):
    monkeypatch.setattr("bcls.search.service._TOGETHER", 1)
    with Service(built, settings=ServiceSettings(cache=0, queue=2, timeout=0.3)) as service:
        held = threading.Event()
        real = service.model.encode_texts
        service.model.encode_texts = lambda texts: held.wait(5) and real(texts)
        waits = []

        def ask(number):
            try:
                service.search(f"red {number}")
            except OverloadedError as error:
                waits.append(error.retry_after)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3)
        held.set()
        assert len(waits) == 8  # five at once, three after their time was over
        assert min(waits) >= 1
        assert answered(service)  # and it still works
    with pytest.raises(IndexUnavailableError, match="expected an open index, got a closed one"):
        service.search("blue")


def test_cross_attention_reranks(tmp_path, built, monkeypatch):
    model = tiny_model(monkeypatch, tmp_path / "cross", regions=True)
    index(tmp_path / "photos", tmp_path / "cross-index", model)
    assert open_index(tmp_path / "cross-index").manifest.cross
    with Service(tmp_path / "cross-index") as service:
        answer = service.search("red green", k=4)
        assert answer.reranked == 12
        paths = sorted((tmp_path / "photos").rglob("*.png"))
        scores = service.model.similarity(paths, ["red green"])[:, 0].tolist()
        expected = sorted(scores, reverse=True)[:4]
        np.testing.assert_allclose([hit.similarity for hit in answer.hits], expected, atol=1e-5)
        assert service.search("red + green", k=4).reranked == 0  # terms are combined as vectors
        by_date = service.search("red green", k=4, sort="date")
        assert by_date.reranked == 12
        assert [hit.date for hit in by_date.hits] == sorted((hit.date for hit in by_date.hits), reverse=True)
        captions = service.captions_for(service.number_of("0/000-red-red.png"), k=2)
        assert captions.reranked == 3
        (tmp_path / "photos/0/000-red-red.png").unlink()
        gone = [hit for hit in service.search("red", k=12).hits if hit.name == "0/000-red-red.png"]
        assert gone[0].similarity == -np.inf
        assert gone[0].score < 0.1
        assert gone[0].as_json()["similarity"] is None
        vectors = Service(tmp_path / "cross-index", settings=ServiceSettings(rerank=0))
        assert vectors.search("red green", k=4).reranked == 0
        vectors.close()


def test_invalid_settings(built):
    for broken in (
        {"cache": -1},
        {"queue": 0},
        {"timeout": 0},
        {"rerank": -1},
    ):
        with pytest.raises(ValueError, match=r"`\w+`: expected a"):
            Service(built, settings=ServiceSettings(**broken))


def test_missing_index(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such index"):
        Service(tmp_path / "none")
    with pytest.raises(ValueError, match=r"expected an index with an index.json, got none"):
        Service(tmp_path)


def test_truncated_archive_of_photos(tmp_path, tiny):
    archive = tmp_path / "photos.zip"
    with zipfile.ZipFile(archive, "w") as pack:
        pack.write(photo(tmp_path / "a.png", ["red"]), "a.png")
    index(archive, tmp_path / "index", tiny)
    archive.write_bytes(archive.read_bytes()[:-30])
    with Service(tmp_path / "index") as service:
        hit = service.search("red", k=1).hits[0]
        assert hit.path == str(archive / "a.png")
        with pytest.raises(FileNotFoundError, match="the photos of the index are missing"):
            service.read_photo(hit.number)


def test_photos_indexed_with_a_raised_limit_are_displayed_and_reranked(tmp_path, monkeypatch):
    model = tiny_model(monkeypatch, tmp_path / "cross", regions=True)
    photo(tmp_path / "photos/a.png", ["red"])
    index(tmp_path / "photos", tmp_path / "index", model, max_pixels=2000)
    photo(tmp_path / "photos/b.png", ["blue"], side=16)
    index(tmp_path / "photos", tmp_path / "index", model, max_pixels=600)
    read = []
    real = decode
    for place in ("bcls.search.service", "bcls.search.embedding"):
        monkeypatch.setattr(f"{place}.decode", lambda *given, **more: read.append(more["max_pixels"]) or real(*given))
    with Service(tmp_path / "index") as service:
        hit = service.search("red", k=1).hits[0]
        assert hit.similarity > 0.5
        assert service.thumbnail(hit.number, 8).size == (8, 8)
    assert set(read) == {2000}


def test_photos_by_date(service):
    found, total = service.by_date()
    assert total == len(found) == 12
    dates = [photo.date for photo in found]
    assert dates == sorted(dates, reverse=True)
    parts = [service.by_date(5, start)[0] for start in (0, 5, 10, 15)]
    assert [photo for part in parts for photo in part] == found
    assert [len(part) for part in parts] == [5, 5, 2, 0]
    under, total = service.by_date(2, 0, parse_filter(under="1/"))
    assert ({photo.name[0] for photo in under}, len(under), total) == ({"1"}, 2, 4)
    both = service.by_date(9, 0, parse_filter(words="above green"))[0]
    assert [photo.name for photo in both] == ["1/001-green-red.png"]
    # All words count, whichever of a photo's captions has them.
    assert service.by_date(9, 0, parse_filter(words="wall all"))[1] == 1
    assert service.by_date(9, 0, parse_filter(words="wal"))[1] == 0
    assert service.by_date(9, 0, parse_filter(before="1990")) == ([], 0)
    assert service.by_date(9, 0, parse_filter(after="1990", under="%"))[1] == 0


def test_newest_photos_come_first(tmp_path, tiny, out):
    for day, name in enumerate(("b", "c", "a")):
        photo(tmp_path / f"photos/{name}.png", ["red"], seed=day)
        os.utime(tmp_path / f"photos/{name}.png", (86400 * day, 86400 * day))
    index(tmp_path / "photos", out, tiny)
    with Service(out) as service:
        assert [found.name for found in service.by_date()[0]] == ["a.png", "c.png", "b.png"]
