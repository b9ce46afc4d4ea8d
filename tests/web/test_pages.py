"""Pages without a browser: contents and escaping."""

from bcls.search.service import Service
from bcls.web import Site
from tests.search.factories import index, photos, tiny_model
from tests.web.factories import client_of, make_site

PAGE = {"accept": "text/html"}
PART = {"hx-request": "true"}
HOSTILE = '"><script>alert(1)</script>'


def test_start_page(client):
    page = client.get("/", headers=PAGE).text
    assert "12 photos and 4 captions" in page
    assert "Compare</a>" in page
    assert "Runs</a>" in page


def test_results_as_page_and_as_fragment(client):
    whole, part = client.get("/?q=red", headers=PAGE), client.get("/results?q=red", headers=PART)
    assert whole.text.count('class="tile"') == part.text.count('class="tile"') == 12
    assert "<html" in whole.text
    assert "<html" not in part.text
    assert "12 photos, best first." in part.text
    assert part.headers["hx-replace-url"] == "/?q=red"
    assert part.headers["vary"] == "HX-Request"


def test_address_contains_the_filters(client):
    part = client.get("/results?q=red&under=1/&fitting=true", headers=PART)
    assert part.headers["hx-replace-url"] == "/?q=red&under=1%2F&fitting=true"
    page = client.get(part.headers["hx-replace-url"], headers=PAGE).text
    assert 'value="1/"' in page
    assert "<details open>" in page


def test_empty_query_and_no_results(client):
    assert "Type a description" in client.get("/results?q=", headers=PART).text
    assert "No photo passes the filters." in client.get("/results?q=red&before=1980", headers=PART).text
    nothing = client.get("/results?q=green&words=wall", headers=PART).text
    assert "No relevant photo; these are the nearest." in nothing
    assert '<li class="unlike">' in nothing
    only = client.get("/results?q=green&words=wall&fitting=true", headers=PART).text
    assert "No relevant photo." in only
    assert "tile" not in only


def test_more_results(folders, tmp_path, monkeypatch):
    index(photos(tmp_path / "photos", 40), tmp_path / "index", tiny_model(monkeypatch, tmp_path / "tiny"))
    with client_of(Site(Service(tmp_path / "index"))) as client:
        first = client.get("/results?q=red", headers=PART).text
        assert first.count('class="tile"') == 30
        assert 'hx-get="/results?q=red&amp;k=60"' in first
        assert client.get("/results?q=red&k=60", headers=PART).text.count('class="tile"') == 40
        page = client.get("/photo/1", headers=PAGE).text
        assert "Closest captions" not in page
        assert client.get("/api/photos/1/captions").status_code == 422
        assert "put .txt files beside" in client.get("/api/photos/1/captions").json()["detail"]
        for address in ("/compare", "/runs", "/runs/x"):
            assert client.get(address, headers=PAGE).status_code == 404
        assert "Compare</a>" not in page


def test_image_upload(client, folders):
    content = (folders / "photos/1/004-black-red.png").read_bytes()
    part = client.post("/results?under=1/", files={"image": content}, headers=PART).text
    assert part.count('class="tile"') == 4
    assert 'title="1/004-black-red.png"' in part.split("</li>")[0]
    bad = client.post("/results", files={"image": b"abc"}, headers=PART)
    assert bad.status_code == 415
    assert "send a JPEG, PNG" in bad.text


def test_a_photo(client):
    page = client.get("/photo/1", headers=PAGE).text
    assert "all red &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "✓ its own" in page
    assert page.count('class="tile"') == 11
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
