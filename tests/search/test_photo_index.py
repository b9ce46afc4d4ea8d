import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bcls.models import load
from bcls.search import PhotoIndex, parse_filter
from tests.samples import DATA, needs_full
from tests.search.factories import photo

pytest.importorskip("faiss", reason='needs pip install "bcls[search]"')


@pytest.fixture
def photo_index(source, out, tiny):
    with PhotoIndex.build(source, out, model=str(tiny), workers=1) as index:
        yield index


def test_search_by_text_path_and_image(photo_index, source):
    assert len(photo_index) == 12
    hits = photo_index.search("red", k=3)
    assert len(hits) == 3
    assert hits[0].path == str(source / "0/000-red-red.png")
    assert hits[0].fits
    path = source / "1/004-black-red.png"
    for query in (path, Image.open(path)):
        first = photo_index.search(query, k=1)[0]
        assert first.name == "1/004-black-red.png"
        assert first.similarity == pytest.approx(1, abs=1e-5)
    assert {hit.name[0] for hit in photo_index.search("red", filters=parse_filter(under="1/"))} == {"1"}


def test_combined_queries_similar_and_duplicates(photo_index, source):
    image = source / "1/004-black-red.png"
    service = photo_index.service
    expected = list(service.search("white - red", image=image.read_bytes(), sort="date").hits)
    assert photo_index.search("white - red", image=image, sort="date") == expected
    number = service.number_of("1/004-black-red.png")
    assert photo_index.similar("1/004-black-red.png", k=3) == list(service.more_like(number, 3).hits)
    (source / "copy.png").write_bytes(image.read_bytes())
    photo_index.update()
    assert {"1/004-black-red.png", "copy.png"} in [
        {one.name for one in group} for group in photo_index.duplicates(0.9999)
    ]
    with pytest.raises(ValueError, match="`photo`: expected the name of a photo in the index"):
        photo_index.similar("no.png")
    with pytest.raises(ValueError, match="`image`: expected a text with it"):
        photo_index.search(image, image=image)


def test_options_of_another_type_do_not_damage_the_index(photo_index, source, out):
    for wrong in ({"captions": "no"}, {"exclude": "*.png"}, {"follow_links": "no"}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}`: expected"):
            photo_index.update(**wrong)
    with PhotoIndex(out) as again:
        assert len(again) == 12


def test_numbers_of_numpy_and_paths_as_names(photo_index):
    assert photo_index.search("red", k=np.int64(2)) == photo_index.search("red", k=2)
    named = photo_index.similar("1/004-black-red.png", k=2)
    assert photo_index.similar(Path("1/004-black-red.png"), k=np.int32(2)) == named
    with pytest.raises(ValueError, match=r"`photo`: expected the name of a photo in the index, got 'no\.png'"):
        photo_index.similar(Path("no.png"))


def test_a_closed_index(photo_index):
    photo_index.close()
    photo_index.close()
    for call in (lambda: photo_index.search("red"), lambda: len(photo_index), photo_index.update):
        with pytest.raises(ValueError, match="`index`: expected an open index, got a closed one; open it again"):
            call()


def test_several_folders(source, out, tiny, tmp_path):
    other = photo(tmp_path / "other/new.png", ["white"]).parent
    with PhotoIndex.build([source, other], out, model=str(tiny), exclude=["2"]) as index:
        assert len(index) == 9
        photo(other / "second.png", ["white"])
        assert index.update().added == 1
        assert index.search("white", k=1)[0].path.startswith(str(other))


def test_update_is_seen_by_the_next_search(photo_index, source):
    photo(source / "0/new.png", ["white"])
    (source / "0/000-red-red.png").unlink()
    report = photo_index.update(workers=1)
    assert (report.added, report.removed, report.unchanged) == (1, 1, 11)
    assert photo_index.search("white", k=1)[0].name == "0/new.png"
    assert len(photo_index) == 12


def test_update_uses_the_options_of_the_build(source, out, tiny):
    (source / "0/000-red-red.txt").write_text("a red wall")
    with PhotoIndex.build(source, out, str(tiny), captions=False, max_pixels=2000) as built:
        photo(source / "large.png", ["red"], side=64)
        (source / "1/001-green-red.txt").write_text("green above red")
        report = built.update()
        assert (report.photos, report.captions, list(report.skipped)) == (12, 0, ["large.png"])
        report = built.update(captions=True, max_pixels=5000)
        assert (report.photos, report.captions) == (13, 2)


def test_model_object_and_reopening(source, out, tiny):
    model = load(tiny)
    with PhotoIndex.build(source, out, model) as index:
        first = index.search("blue", k=1)
        assert index.update().unchanged == 12
    with PhotoIndex(out, model) as index:
        assert index.search("blue", k=1) == first


def test_invalid_input(photo_index, source, out, tiny, tmp_path):
    with pytest.raises(ValueError, match="`device_`: expected an option of IndexSettings"):
        PhotoIndex.build(source, out, model=str(tiny), device_="cpu")
    with pytest.raises(ValueError, match="`text`: expected some words"):
        photo_index.search("")
    with pytest.raises(FileNotFoundError):
        photo_index.search(tmp_path / "none.png")
    with pytest.raises(FileNotFoundError, match="no such index"):
        PhotoIndex(tmp_path / "none")


@pytest.fixture(scope="module")
def flickr(tmp_path_factory):
    """An index of 300 test photos of Flickr8k by the packaged model, and 60 other test photos."""
    folder = tmp_path_factory.mktemp("flickr")
    (folder / "photos").mkdir()
    content = json.loads(gzip.decompress((DATA / "flickr8k/dataset_flickr8k.json.gz").read_bytes()))
    stems = [Path(one["filename"]).stem for one in content["images"] if one["split"] == "test"]
    with zipfile.ZipFile(DATA / "flickr8k/images_224.zip") as archive:
        files = {Path(name).stem: name for name in archive.namelist()}
        for stem in stems[:300]:
            (folder / f"photos/{stem}.webp").write_bytes(archive.read(files[stem]))
        others = [Image.open(io.BytesIO(archive.read(files[stem]))).convert("RGB") for stem in stems[300:360]]
    with PhotoIndex.build(folder / "photos", folder / "index") as index:
        yield index, others


def best(hits):
    return max(hit.score for hit in hits)


@needs_full
@pytest.mark.parametrize("text", ["a submarine under water", "a giraffe in the savanna"])
def test_absent_things_have_low_scores(flickr, text):
    index, _ = flickr
    assert best(index.search(text, k=300)) < 0.7


@needs_full
def test_subtraction_of_an_absent_thing_keeps_the_scores(flickr):
    index, _ = flickr
    for text in ("a dog runs through the grass", "a man riding a bike"):
        alone, hits = index.search(text), index.search(f"{text} - cat")
        assert any(hit.fits for hit in hits)
        assert best(hits) == pytest.approx(best(alone), abs=0.1)
        assert sum(hit.fits for hit in index.search(f"{text} - cat", k=300, sort="date")) > 1


@needs_full
def test_few_unrelated_photos_are_similar_and_copies_are(flickr):
    index, others = flickr
    unrelated = [index.search(one, k=1)[0] for one in others]
    assert np.mean([hit.fits for hit in unrelated]) < 0.3
    assert np.median([hit.score for hit in unrelated]) < 0.8
    copies = []
    for hit in index.search("a dog", k=10):
        with Image.open(hit.path) as image:
            width, height = image.size
            inside = image.convert("RGB").crop((width // 20, height // 20, width * 19 // 20, height * 19 // 20))
        first = index.search(inside, k=1)[0]
        copies.append(first.fits and first.name == hit.name)
    assert np.mean(copies) >= 0.9
