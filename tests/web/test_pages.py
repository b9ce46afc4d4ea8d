"""Pages without a browser: contents and escaping."""

import io
import os
import re
import time
import zipfile
from html import escape
from urllib.parse import parse_qsl, urlsplit

import pytest
from PIL import Image

from bcls.search.service import Service
from bcls.web import Site
from bcls.web.pages import zip_photos
from tests.search.factories import index, photos, tiny_model
from tests.web.factories import calibrated_site, client_of, make_site

PAGE = {"accept": "text/html"}
PART = {"x-fragment": "1"}
HOSTILE = '"><script>alert(1)</script>'


def shown(text):
    """Names of the photos in a page or fragment, in order."""
    return re.findall(r'class="tile" href="[^"]*" title="([^"]*)"', text)


def test_start_page_shows_photos_by_date(client):
    page = client.get("/", headers=PAGE).text
    assert "12 photos, newest first" in page
    assert len(shown(page)) == 12
    assert f"<h2>{time.strftime('%B %Y', time.gmtime())}</h2>" in page
    assert "Words in captions" in page
    assert "Compare</a>" in page
    assert "Runs</a>" in page


def test_pages_by_date(folders, tmp_path):
    source = photos(tmp_path / "photos", 130)
    newest_first = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.png"))
    for place, name in enumerate(newest_first):
        date = 1_700_000_000 - 86_400 * place
        os.utime(source / name, (date, date))
    index(source, tmp_path / "index", folders / "first")
    with client_of(Site(Service(tmp_path / "index"))) as client:
        first, second, third = (client.get(f"/?page={page}", headers=PAGE).text for page in (1, 2, 3))
        assert shown(first) + shown(second) + shown(third) == newest_first
        assert [len(shown(page)) for page in (first, second, third)] == [60, 60, 10]
        assert re.findall("<h2>(.*)</h2>", first) == ["November 2023", "October 2023", "September 2023"]
        assert re.findall('<a class="button" href="([^"]*)" rel="(....)"', second) == [
            ("/", "prev"),
            ("/?page=3", "next"),
        ]
        assert "Page 3 of 3" in third
        assert "next" not in re.findall('rel="(....)"', third)
        assert "Words in captions" not in first  # no photo has captions
        filtered = client.get("/results?under=1/&page=1&before=2023-11", headers=PART)
        assert filtered.headers["x-address"] == "/?before=2023-11&under=1%2F"
        assert {name[0] for name in shown(filtered.text)} == {"1"}
        # The last page, if there were more photos when the address was written.
        assert shown(client.get("/results?page=99", headers=PART).text) == shown(third)
        assert "No photo passes the filters" in client.get("/results?page=99&under=x", headers=PART).text


def test_results_as_page_and_as_fragment(client):
    whole, part = client.get("/?q=red&fits=0", headers=PAGE), client.get("/results?q=red&fits=0", headers=PART)
    assert shown(whole.text) == shown(part.text)
    assert len(shown(part.text)) == 12
    assert "<html" in whole.text
    assert "<html" not in part.text
    assert part.headers["x-address"] == "/?q=red&fits=0"
    assert "X-Fragment" in part.headers["vary"]


@pytest.mark.parametrize(
    "address",
    [
        "/",
        "/?q=red",
        "/?q=dog+%2B+beach+-+0.5+person",
        "/?q=red&after=2020-01-01&before=2030-01-02&under=1%2F&words=above&k=60&fits=0.25&sort=date",
        "/?like=2&fits=0.9",
        "/?under=1%2F&page=2",
    ],
)
def test_every_state_has_an_address(client, address):
    part = client.get(address.replace("/", "/results", 1), headers=PART)
    assert part.headers["x-address"] == address
    page = client.get(address, headers=PAGE).text
    for name, value in parse_qsl(urlsplit(address).query):
        if name == "sort":
            assert '<option value="date" selected>' in page
        elif name not in {"k", "page"}:
            assert re.search(rf'name="{name}"[^>]* value="{re.escape(escape(value))}"', page), name


def test_fits_is_the_minimum_score(client):
    every = client.get("/api/search?q=red&k=12").json()["results"]
    for fits in (0, 0.25, 0.5, 0.75, 1):
        expected = [row["name"] for row in every if row["score"] >= fits]
        assert shown(client.get(f"/results?q=red&fits={fits}", headers=PART).text) == expected
    default = client.get("/results?q=red", headers=PART).text
    assert shown(default) == [row["name"] for row in every if row["fits"]]
    assert 0 < len(shown(default)) < 12
    assert 'href="/?q=red&amp;fits=0" data-fits="0">Show photos that fit less' in default
    everything = client.get("/results?q=red&fits=0", headers=PART).text
    assert everything.count('<li class="unlike">') == 12 - len(shown(default))
    for wrong in ("nan", "-1", "1.1", "x"):
        assert client.get(f"/results?q=red&fits={wrong}", headers=PART).status_code == 422


def test_slider_shows_the_threshold_of_the_results(folders):
    content = (folders / "photos/1/004-black-red.png").read_bytes()
    with client_of(calibrated_site(folders)) as client:
        for address, own, value in (
            ("/", "0.30", "0.3"),
            ("/?q=red", "0.30", "0.3"),
            ("/?q=red&before=1990", "0.30", "0.3"),
            ("/?like=1", "0.00", "0.0"),
            ("/?like=1&before=1990", "0.00", "0.0"),
            ("/?like=1&q=red&fits=0.4", "0.00", "0.4"),
        ):
            page = client.get(address, headers=PAGE).text
            assert re.search(r'name="fits" [^>]*value="([^"]*)" data-own="([^"]*)"', page).groups() == (value, own)
            assert f"<output>{float(value):.0%}</output>" in page
            part = client.get("/results" + address[1:], headers=PART)
            assert part.headers["x-threshold"] == own
        part = client.post("/results", files={"image": content}, headers=PART)
        assert part.headers["x-threshold"] == "0.00"
        assert len(shown(client.get("/?like=1", headers=PAGE).text)) == 11  # all others, whether they fit or not


def test_nothing_fits(client):
    nothing = client.get("/results?q=green&words=wall", headers=PART).text
    best = client.get("/api/search?q=green&words=wall").json()["results"][0]["score"]
    assert "<h2>Nothing fits</h2>" in nothing
    assert f"with a probability of {100 * best:.0f}%; 50% is required" in nothing
    assert shown(nothing) == []
    nearest = re.search('href="([^"]*)" data-fits="0">Show the nearest', nothing)[1].replace("&amp;", "&")
    page = client.get(nearest, headers=PAGE).text
    assert shown(page) == ["0/000-red-red.png"]
    assert "Nothing fits. These are the nearest photos." in page
    assert "No photo passes the filters" in client.get("/results?q=red&before=1980", headers=PART).text
    assert "No photo passes the filters" in client.get("/results?before=1980", headers=PART).text


def test_results_by_date(folders, tmp_path):
    source = photos(tmp_path / "photos", 6)
    for place, path in enumerate(sorted(source.rglob("*.png"))):
        os.utime(path, (86_400 * place, 86_400 * place))
    index(source, tmp_path / "index", folders / "first")
    with client_of(Site(Service(tmp_path / "index"))) as client:
        best = shown(client.get("/results?q=red&fits=0", headers=PART).text)
        newest = shown(client.get("/results?q=red&fits=0&sort=date", headers=PART).text)
        assert newest == sorted(best, reverse=True)
        assert newest != best


def test_newest_photos_for_an_image_are_those_that_fit(folders):
    image = {"image": (folders / "photos/1/004-black-red.png").read_bytes()}
    with client_of(calibrated_site(folders)) as client:
        newest = client.post("/results?sort=date", files=image, headers=PART)
        rows = client.post("/api/search?sort=date&k=12", files=image).json()["results"]
        assert 0 < len(rows) < 12
        assert shown(newest.text) == [row["name"] for row in rows]
        assert newest.headers["x-threshold"] == "0.90"
        assert len(shown(client.post("/results", files=image, headers=PART).text)) == 12
        # If none fits, the nearest have the best first, as in the API.
        assert "Nothing fits" in client.get("/results?like=1&sort=date", headers=PART).text
        nearest = shown(client.get("/results?like=1&sort=date&fits=0", headers=PART).text)
        assert nearest == [row["name"] for row in client.get("/api/photos/1/similar?k=12").json()["results"]]


def test_dates_of_an_address_are_shown_as_days(client):
    page = client.get("/?after=2016&before=2099-05", headers=PAGE).text
    assert 'name="after" value="2016-01-01"' in page
    assert 'name="before" value="2099-05-01"' in page


def test_more_results(folders, tmp_path, monkeypatch):
    index(photos(tmp_path / "photos", 40), tmp_path / "index", tiny_model(monkeypatch, tmp_path / "tiny"))
    with client_of(Site(Service(tmp_path / "index"))) as client:
        first = client.get("/results?q=red&fits=0", headers=PART).text
        assert len(shown(first)) == 30
        assert 'href="/?q=red&amp;k=60&amp;fits=0" data-load>More photos' in first
        every = client.get("/results?q=red&fits=0&k=60", headers=PART).text
        assert len(shown(every)) == 40
        assert "data-load" not in every
        page = client.get("/photo/1", headers=PAGE).text
        assert "Closest captions" not in page
        assert client.get("/api/photos/1/captions").status_code == 422
        assert "put .txt files beside" in client.get("/api/photos/1/captions").json()["detail"]
        for address in ("/compare", "/runs", "/runs/x"):
            assert client.get(address, headers=PAGE).status_code == 404
        assert "Compare</a>" not in page


def test_image_upload(client, folders):
    content = (folders / "photos/1/004-black-red.png").read_bytes()
    part = client.post("/results?under=1/&fits=0", files={"image": content}, headers=PART).text
    assert len(shown(part)) == 4
    assert shown(part)[0] == "1/004-black-red.png"
    bad = client.post("/results", files={"image": b"abc"}, headers=PART)
    assert bad.status_code == 415
    assert "send a JPEG, PNG" in bad.text


def test_photos_like_one(client):
    page = client.get("/?like=1&fits=0", headers=PAGE).text
    assert shown(page) == [row["name"] for row in client.get("/api/photos/1/similar?k=30").json()["results"]]
    assert 'src="/api/photos/1/thumbnail"' in page
    assert client.get("/?like=999", headers=PAGE).status_code == 404


def test_image_and_text(client, folders):
    content = (folders / "photos/1/004-black-red.png").read_bytes()
    both = shown(client.post("/results?q=white&fits=0", files={"image": content}, headers=PART).text)
    assert both != shown(client.post("/results?fits=0", files={"image": content}, headers=PART).text)
    assert both != shown(client.get("/results?q=white&fits=0", headers=PART).text)
    number = client.get("/api/search?q=black&k=12&under=1/004").json()["results"][0]["number"]
    assert shown(client.get(f"/?like={number}&q=white&fits=0", headers=PAGE).text) == both


def test_duplicates(folders, tmp_path):
    source = photos(tmp_path / "photos", 6)
    for name in ("000-red-red", "003-yellow-red"):
        with Image.open(source / f"0/{name}.png") as image:
            image.resize((64, 64)).save(source / f"0/{name}-copy.png")
        os.utime(source / f"0/{name}.png", (1e9, 1e9))
    index(source, tmp_path / "index", folders / "first")
    with client_of(Site(Service(tmp_path / "index"))) as client:
        page = client.get("/duplicates", headers=PAGE).text
        assert "2 groups" in page
        groups = [shown(part) for part in page.split('<section class="group"')[1:]]
        # In a group the oldest comes first.
        names = ("0/000-red-red", "0/003-yellow-red")
        assert sorted(groups) == [[f"{name}.png", f"{name}-copy.png"] for name in names]
        assert "No duplicates" not in page
        assert client.get("/duplicates?page=0", headers=PAGE).status_code == 422
        assert client.get("/duplicates?page=9", headers=PAGE).text == page
    with client_of(make_site(folders, compare=False)) as client:
        assert "No duplicates" in client.get("/duplicates", headers=PAGE).text


def test_download(client, folders, tmp_path):
    numbers = {row["name"]: row["number"] for row in client.get("/api/search?q=red&k=12").json()["results"]}
    names = ["0/000-red-red.png", "2/008-blue-green.png", "1/001-green-red.png"]
    path = folders / "photos" / names[1]
    path.rename(tmp_path / "away.png")
    try:
        answer = client.post("/download", data={"number": [numbers[name] for name in names]})
    finally:
        (tmp_path / "away.png").rename(path)
    assert [answer.status_code, answer.headers["content-type"]] == [200, "application/zip"]
    assert answer.headers["content-disposition"] == "attachment; filename=photos.zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [names[0], names[2], "missing.txt"]
        assert archive.read(names[0]) == (folders / "photos" / names[0]).read_bytes()
        assert names[1] in archive.read("missing.txt").decode()
        assert archive.infolist()[0].date_time[0] == time.gmtime().tm_year
    for wrong in ({}, {"number": "x"}, {"number": str(2**70)}):
        assert client.post("/download", data=wrong).status_code == 422
    assert client.post("/download", data={"number": ["1"] * 1001}).status_code == 400
    assert client.post("/download", data={"number": "999"}).status_code == 404
    assert client.post("/download", data={"number": "1"}, headers={"origin": "http://evil"}).status_code == 403


@pytest.mark.parametrize(("date", "year"), [(4.5e9, 2107), (-3e9, 1980)])
def test_dates_in_a_download_that_zip_files_cannot_have(folders, date, year):
    with Service(folders / "index") as service:
        content = b"".join(zip_photos(service, [service.photo(1)._replace(date=date)]))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert archive.infolist()[0].date_time[0] == year


def test_names_in_a_download_stay_below_its_folder(folders):
    with Service(folders / "index") as service:
        bad = service.photo(1)._replace(name="../..\\a//./c:.png", date=0.0)
        content = b"".join(zip_photos(service, [bad]))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == ["a/c_.png"]


def test_pages_are_compressed(client):
    for address in ("/", "/static/app.css", "/results?q=red"):
        assert client.get(address, headers={"accept-encoding": "gzip"}).headers["content-encoding"] == "gzip"
        assert "content-encoding" not in client.get(address, headers={"accept-encoding": "identity"}).headers
    for address in ("/api/photos/1/file", "/api/photos/1/thumbnail"):
        assert "content-encoding" not in client.get(address, headers={"accept-encoding": "gzip"}).headers


def test_pages_are_small(client):
    """Everything that a phone loads before the photos."""
    sizes = [
        int(client.get(address, headers={"accept-encoding": "gzip"}).headers["content-length"])
        for address in ("/", "/static/app.css", "/static/app.js", "/static/icon.svg")
    ]
    assert sum(sizes) < 20_000


def test_a_photo(client):
    page = client.get("/photo/1", headers=PAGE).text
    assert "all red &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "✓ its own" in page
    assert len(shown(page)) == 11
    assert '<a href="/compare?photo=1">' in page
    part = client.get("/photo/1", headers=PART).text
    assert "<html" not in part
    gone = client.get("/photo/999", headers=PAGE)
    assert gone.status_code == 404
    assert "search again" in gone.text


def test_user_input_is_escaped(client):
    for address in ("/", "/results", "/compare"):
        text = client.get(address, params={"q": HOSTILE, "under": HOSTILE}, headers=PAGE).text
        assert "<script>alert" not in text
    assert "<script>alert" not in client.get(f"/{HOSTILE}", headers=PAGE).text
    invalid = client.get("/results", params={"q": "red", "after": HOSTILE}, headers=PART)
    assert invalid.status_code == 422
    assert "&lt;script&gt;" in invalid.text


def test_invalid_queries_in_the_page(client):
    long = client.get("/results?q=" + "x" * 3000, headers=PART)
    assert long.status_code == 422
    assert "at most 2000 characters, got 3000" in long.text
    assert client.get("/results?q=red&k=0", headers=PART).status_code == 422
    assert "<h1>404</h1>" in client.get("/nowhere", headers=PAGE).text
    assert client.get("/static/..%2fapp.py").status_code == 404
    assert client.get("/static/app.js").headers["content-type"] == "text/javascript; charset=utf-8"


def test_the_api_is_described(client):
    page = client.get("/about/api", headers=PAGE).text
    assert "/api/search" in page
    assert "What the photos should show." in page


def test_alt_text_without_captions_is_the_name(client):
    assert 'alt="0/003-yellow-red.png"' in client.get("/results?q=yellow", headers=PART).text


def test_site_without_compare(folders):
    site = make_site(folders, compare=False)
    with client_of(site) as client:
        assert "Compare" not in client.get("/", headers=PAGE).text
