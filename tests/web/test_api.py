"""The JSON API: results and problem details."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from bcls.search.batcher import OverloadedError
from tests.web.factories import client_of, make_site


def png(width, height):
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(buffer, "PNG")
    return buffer.getvalue()


def problem(answer, status):
    """The detail of a problem response, after checking its format."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    return body["detail"]


def test_text_search(client, folders):
    body = client.get("/api/search", params={"q": "red", "k": 3}).json()
    assert body["results"][0]["name"] == "0/000-red-red.png"
    assert len(body["results"]) == 3
    assert body["fits"] is True
    first = body["results"][0]
    assert first["path"] == str(folders / "photos/0/000-red-red.png")
    assert first["captions"][0] == "a red wall"
    scores = [row["score"] for row in body["results"]]
    assert scores == sorted(scores, reverse=True)


def test_filters(client):
    names = [row["name"] for row in client.get("/api/search?q=red&under=1/&k=20").json()["results"]]
    assert len(names) == 4
    assert {name[0] for name in names} == {"1"}
    assert len(client.get("/api/search?q=red&words=above&k=20").json()["results"]) == 2
    assert client.get("/api/search?q=red&before=1990").json() == {"results": [], "fits": False, "reranked": 0}


def test_order_by_date(client, folders):
    content = (folders / "photos/1/004-black-red.png").read_bytes()
    for ask in (
        lambda sort: client.get(f"/api/search?q=red&k=12{sort}"),
        lambda sort: client.get(f"/api/photos/1/similar?k=12{sort}"),
        lambda sort: client.post(f"/api/search?k=12{sort}", files={"image": content}),
    ):
        best, newest = ask("").json()["results"], ask("&sort=date").json()["results"]
        assert ask("&sort=score").json()["results"] == best
        assert {row["name"] for row in newest} == {row["name"] for row in best if row["fits"]}
        assert [row["date"] for row in newest] == sorted((row["date"] for row in newest), reverse=True)
    assert "`sort`" in problem(client.get("/api/search?q=red&sort=name"), 422)


def test_image_search(client, folders):
    content = (folders / "photos/1/004-black-red.png").read_bytes()
    body = client.post("/api/search?k=2", files={"image": content}).json()
    assert [len(body["results"]), body["results"][0]["name"]] == [2, "1/004-black-red.png"]
    body = client.post("/api/search?under=0/", files={"image": content}).json()
    assert {row["name"][0] for row in body["results"]} == {"0"}
    content = (folders / "photos/0/000-red-red.png").read_bytes()
    found = client.post("/api/captions?k=1", files={"image": content}).json()["results"]
    assert found[0]["text"] in {"a red wall", "all red <script>alert(1)</script>"}


def test_image_and_text(client, folders):
    content = (folders / "photos/1/004-black-red.png").read_bytes()

    def names(q):
        return [
            row["name"]
            for row in client.post("/api/search", params={"q": q}, files={"image": content}).json()["results"]
        ]

    assert names(" ") == names("")
    assert names("white")[0] != names("")[0]
    assert names("white") != [row["name"] for row in client.get("/api/search?q=white").json()["results"]]


@pytest.mark.parametrize("name", ["q", "k", "sort", "under"])
@pytest.mark.parametrize("address", ["/api/search", "/api/captions", "/results"])
def test_parameters_in_a_form_are_not_ignored(client, folders, address, name):
    image = (folders / "photos/1/004-black-red.png").read_bytes()
    answer = client.post(address, files={"image": image}, data={name: "1"})
    assert answer.status_code == 422
    assert f"`{name}`: expected in the address" in answer.json()["detail"]
    assert client.post(address, files={"image": image}, data={"send": "Search"}).status_code == 200


def test_query_arithmetic(client):
    first = client.get("/api/search", params={"q": "red + green"}).json()["results"][0]["name"]
    assert first == "0/003-yellow-red.png"  # the sum of the two colors
    assert "operator" in problem(client.get("/api/search", params={"q": "+ -"}), 422)


def test_photos(client, folders):
    number = client.get("/api/search?q=red&k=1").json()["results"][0]["number"]
    facts = client.get(f"/api/photos/{number}").json()
    assert [facts["name"], facts["captions"][0]] == ["0/000-red-red.png", "a red wall"]
    found = client.get(f"/api/photos/{number}/captions?k=2").json()["results"]
    assert {row["number"] for row in found} == {number}
    similar = client.get(f"/api/photos/{number}/similar?k=4").json()["results"]
    assert len(similar) == 4
    assert number not in {row["number"] for row in similar}
    whole = client.get(f"/api/photos/{number}/file")
    assert whole.content == (folders / "photos/0/000-red-red.png").read_bytes()
    assert whole.headers["content-type"] == "image/png"
    small = client.get(f"/api/photos/{number}/thumbnail")
    with Image.open(io.BytesIO(small.content)) as image:
        assert image.format == "JPEG"
        difference = np.asarray(image, float) - np.asarray(Image.open(io.BytesIO(whole.content)).convert("RGB"), float)
        assert np.abs(difference).mean() < 8


@pytest.mark.parametrize("what", ["thumbnail", "file"])
def test_etags_differ_between_indexes(folders, tmp_path, what):
    """Another index at the same address has other photos under the same numbers."""
    from bcls.search.service import Service
    from bcls.web import Site
    from tests.search.factories import index, photo

    photo(tmp_path / "photos/a.png", ["white"])
    index(tmp_path / "photos", tmp_path / "index", folders / "first")
    address = f"/api/photos/1/{what}"
    with client_of(make_site(folders, compare=False)) as client:
        first = client.get(address)
        assert first.headers["cache-control"] == "private, no-cache"
        again = client.get(address, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    with client_of(Site(Service(tmp_path / "index"))) as client:
        other = client.get(address, headers={"if-none-match": first.headers["etag"]})
        assert other.status_code == 200
        assert other.content != first.content


def single(folder, model, save):
    """A site with an index of one photo, which ``save`` writes to the given path."""
    from bcls.search.service import Service
    from bcls.web import Site
    from tests.search.factories import index

    (folder / "photos").mkdir()
    save(folder / "photos/a.jpg")
    index(folder / "photos", folder / "index", model)
    return Site(Service(folder / "index"))


def plain(color, size=(400, 300)):
    return lambda path: Image.new("RGB", size, color).save(path)


def test_etag_is_of_the_bytes_sent(folders, tmp_path):
    import hashlib

    with client_of(single(tmp_path, folders / "first", plain("red"))) as client:
        for address in ("thumbnail", "thumbnail?size=large", "file"):
            answer = client.get(f"/api/photos/1/{address}")
            assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
        sizes = [client.get(f"/api/photos/1/thumbnail?size={size}").headers["etag"] for size in ("small", "large")]
        assert sizes[0] != sizes[1]


@pytest.mark.parametrize("what", ["thumbnail", "file"])
def test_deleted_and_replaced_photos(folders, tmp_path, what):
    """Neither the server nor a browser's cache shows the old photo."""
    with client_of(single(tmp_path, folders / "first", plain("red"))) as client:
        first = client.get(f"/api/photos/1/{what}")
        known = {"if-none-match": first.headers["etag"]}
        assert client.get(f"/api/photos/1/{what}", headers=known).status_code == 304
        plain("blue")(tmp_path / "photos/a.jpg")
        replaced = client.get(f"/api/photos/1/{what}", headers=known)
        assert replaced.status_code == 200
        assert Image.open(io.BytesIO(replaced.content)).getpixel((5, 5))[2] > 200
        (tmp_path / "photos/a.jpg").write_bytes(b"no longer an image")
        assert "cannot be read" in problem(client.get(f"/api/photos/1/{what}", headers=known), 404)
        (tmp_path / "photos/a.jpg").unlink()
        assert "its file is missing" in problem(client.get(f"/api/photos/1/{what}", headers=known), 404)


def test_mpo_photos_are_displayed(folders, tmp_path):
    def save(path):
        more = Image.new("RGB", (64, 64), "blue")
        Image.new("RGB", (64, 64), "red").save(path, "MPO", save_all=True, append_images=[more])

    with client_of(single(tmp_path, folders / "first", save)) as client:
        answer = client.get("/api/photos/1/file")
        assert Image.open(io.BytesIO(answer.content)).format == "MPO"
        assert answer.headers["content-type"] == "image/jpeg"
        assert answer.headers["content-disposition"] == "inline; filename*=utf-8''a.jpg"


def test_files_that_browsers_cannot_display_are_downloaded(folders, tmp_path):
    def save(path):
        Image.new("RGB", (64, 64), "red").save(path, "TIFF")

    with client_of(single(tmp_path, folders / "first", save)) as client:
        headers = client.get("/api/photos/1/file").headers
        assert headers["content-type"] == "application/octet-stream"
        assert headers["content-disposition"].startswith("attachment; ")


@pytest.mark.parametrize(
    "address", ["/api/photos/1/file", "/api/photos/1/thumbnail", "/", "/healthz", "/static/app.css"]
)
def test_head(client, address):
    whole, head = client.get(address), client.head(address)
    assert [head.status_code, head.content] == [200, b""]
    for name in ("content-type", "content-length", "etag"):
        assert head.headers.get(name) == whole.headers.get(name)
    assert client.head("/nowhere").status_code == 404


def test_range_applies_to_get_only(client):
    head = client.head("/api/photos/1/file", headers={"range": "bytes=0-9"})
    assert [head.status_code, head.headers["content-length"]] == [
        200,
        client.get("/api/photos/1/file").headers["content-length"],
    ]
    assert "content-range" not in head.headers


@pytest.mark.parametrize("what", ["thumbnail", "file"])
def test_if_none_match(client, what):
    address = f"/api/photos/1/{what}"
    tag = client.get(address).headers["etag"]
    for given in ("*", " * ", tag, f"W/{tag}", f'"other", {tag}'):
        assert client.get(address, headers={"if-none-match": given}).status_code == 304
    for given in ("", '"other"', '"*"'):
        assert client.get(address, headers={"if-none-match": given}).status_code == 200


@pytest.mark.parametrize(
    ("given", "start", "end"),
    [("0-9", 0, 10), ("10-", 10, None), ("-5", -5, None), ("0-99999999", 0, None), ("-99999999", 0, None)],
)
def test_ranges(client, given, start, end):
    whole = client.get("/api/photos/1/file")
    assert whole.headers["accept-ranges"] == "bytes"
    part = client.get("/api/photos/1/file", headers={"range": f"bytes={given}"})
    expected = whole.content[start:end]
    assert [part.status_code, part.content] == [206, expected]
    first = whole.content.index(expected) if start else 0
    assert part.headers["content-range"] == f"bytes {first}-{first + len(expected) - 1}/{len(whole.content)}"
    assert part.headers["content-length"] == str(len(expected))
    assert part.headers["etag"] == whole.headers["etag"]


def test_ranges_that_are_not_served(client):
    whole = client.get("/api/photos/1/file")
    size = len(whole.content)
    for given in (f"bytes={size}-", "bytes=-0"):
        answer = client.get("/api/photos/1/file", headers={"range": given})
        assert "request an earlier part" in problem(answer, 416)
        assert answer.headers["content-range"] == f"bytes */{size}"
    for given in ("bytes=5-2", "lines=1-2", "bytes=0-1,4-5", "bytes=-", "bytes=x", "bytes=٣-", ""):
        answer = client.get("/api/photos/1/file", headers={"range": given.encode()})
        assert [answer.status_code, answer.content] == [200, whole.content], given
    old = {"range": "bytes=0-9", "if-range": '"other"'}
    assert client.get("/api/photos/1/file", headers=old).status_code == 200
    same = {"range": "bytes=0-9", "if-range": whole.headers["etag"]}
    assert client.get("/api/photos/1/file", headers=same).status_code == 206


@pytest.mark.parametrize(
    ("address", "status", "expected"),
    [
        ("/api/search", 422, "`q`: field required"),
        ("/api/search?q=", 422, "`q`: expected some words, got ''; describe"),
        ("/api/search?q=%20%00", 422, "`q`: expected some words"),
        ("/api/search?q=" + "x" * 50_000, 422, "`q`: expected at most 2000 characters, got 50000; describe one"),
        ("/api/search?q=red&k=0", 422, "`k`: input should be greater than or equal to 1, got '0'"),
        ("/api/search?q=red&k=1001", 422, "`k`: input should be less than or equal to 1000"),
        ("/api/search?q=red&k=some", 422, "`k`: "),
        ("/api/search?q=red&after=soon", 422, "`after`: expected a date such as 2024"),
        ("/api/search?q=red&after=2024&before=2023", 422, "`before`: expected a date later"),
        ("/api/search?q=red&words=!", 422, "`words`: expected at least one word"),
        ("/api/photos/999", 404, "`number`: expected the number of a photo in the index, got 999"),
        ("/api/photos/999/thumbnail", 404, "search again"),
        ("/api/photos/999/file", 404, "search again"),
        ("/api/photos/999/captions", 404, "search again"),
        ("/api/photos/999/similar", 404, "search again"),
        (f"/api/photos/{2**70}", 422, "`number`: "),
        ("/api/photos/..%2f..%2fetc%2fpasswd", 404, "nothing at this address"),
        ("/api/photos/1/thumbnail?size=../x", 422, "`size`: "),
        ("/api/none", 404, "nothing at this address: see /"),
    ],
)
def test_problem_details_of_invalid_requests(client, address, status, expected):
    assert expected in problem(client.get(address), status)


def test_rejected_uploads(folders):
    with client_of(make_site(folders, compare=False, max_upload=20_000, max_pixels=10_000)) as client:

        def send(content):
            return client.post("/api/search", files={"image": content})

        assert send(png(100, 100)).status_code == 200
        assert "got 3 bytes of something else; send a JPEG" in problem(send(b"abc"), 415)
        assert "got an empty file; send" in problem(send(b""), 415)
        assert "a damaged one" in problem(send(png(100, 100)[:-30]), 415)
        assert "at most 10000 pixels, got 101 x 100; shrink the image" in problem(send(png(101, 100)), 413)
        # A small file that would unpack to gigabytes: refused by its header.
        bomb = bytearray(png(1, 1))
        bomb[16:24] = (60_000).to_bytes(4, "big") * 2
        assert "shrink the image" in problem(send(_with_checksum(bomb)), 413)
        assert "expected at most 20000 bytes" in problem(send(bytes(30_000)), 413)

        def endless():
            for _ in range(100):
                yield bytes(1000)

        kind = {"content-type": "multipart/form-data; boundary=x"}
        assert "at most 20000 bytes" in problem(client.post("/api/search", content=endless(), headers=kind), 413)
        assert "with the field `image`" in problem(client.post("/api/search", content=b"abc"), 422)
        assert "with the field `image`" in problem(client.post("/api/search", data={"image": "text"}), 422)


def _with_checksum(content):
    import zlib

    content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
    return bytes(content)


def test_missing_photo_file(folders, tmp_path):
    import shutil

    with client_of(make_site(folders, compare=False)) as client:
        path = folders / "photos/2/011-white-green.png"
        number = client.get("/api/search?q=red&k=20&under=2/011").json()["results"][0]["number"]
        shutil.move(path, tmp_path / "away.png")
        try:
            for what in ("thumbnail", "file"):
                detail = problem(client.get(f"/api/photos/{number}/{what}"), 404)
                assert "2/011-white-green.png: the photo is in the index, but its file is missing" in detail
                assert "run `bcls index` again" in detail
            assert client.get("/api/search?q=red&k=20&under=2/011").status_code == 200
        finally:
            shutil.move(tmp_path / "away.png", path)


def test_index_replaced_by_one_of_another_model(tmp_path, monkeypatch):
    import shutil

    from bcls.search.service import Service
    from bcls.web import Site
    from tests.search.factories import index, photos, tiny_model

    source = photos(tmp_path / "photos", 3)
    index(source, tmp_path / "index", tiny_model(monkeypatch, tmp_path / "first"))
    with client_of(Site(Service(tmp_path / "index"))) as client:
        assert client.get("/api/search?q=red").status_code == 200
        index(source, tmp_path / "new", tiny_model(monkeypatch, tmp_path / "second", seed=2))
        (tmp_path / "index").rename(tmp_path / "old")
        assert "cannot be read" in problem(client.get("/api/search?q=red"), 503)
        shutil.move(tmp_path / "new", tmp_path / "index")
        for address in ("/api/search?q=red", "/api/photos/1"):
            answer = client.get(address)
            assert "an index of another model; restart the service" in problem(answer, 503)
            assert answer.headers["retry-after"] == "60"


def test_overload_is_503_with_retry_after(folders, monkeypatch):
    site = make_site(folders, compare=False)

    def full(*_, **__):
        raise OverloadedError(3)

    monkeypatch.setattr(site.service, "search", full)
    with client_of(site) as client:
        answer = client.get("/api/search?q=red")
        assert "try again in 3 s" in problem(answer, 503)
        assert answer.headers["retry-after"] == "3"


def test_health_and_metrics(folders):
    with client_of(make_site(folders, compare=False)) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        for text in ("red", "red", "blue"):
            client.get("/api/search", params={"q": text})
        client.get("/nowhere/1")
        client.get("/nowhere/2")
        lines = client.get("/metrics").text.splitlines()
        assert 'bcls_requests_total{route="/api/search",status="200"} 3.0' in lines
        assert 'bcls_requests_total{route="other",status="404"} 2.0' in lines
        assert 'bcls_request_seconds_bucket{le="+Inf",route="/api/search"} 3.0' in lines
        assert "bcls_text_cache_hits_total 1.0" in lines
        assert "bcls_texts_encoded_total 2.0" in lines


def test_internal_errors_have_no_traceback(folders, monkeypatch):
    site = make_site(folders, compare=False)
    monkeypatch.setattr(site.service, "search", lambda *_, **__: 1 / 0)
    with client_of(site, raise_server_exceptions=False) as client:
        assert (
            problem(client.get("/api/search?q=red"), 500)
            == "an error in the server (ZeroDivisionError): see its output"
        )
        assert client.get("/api/photos/1").status_code == 200


PLACES = ["/api/search?q=red", "/api/photos/1", "/api/photos/1/similar", "/api/photos/1/thumbnail", "/photo/1"]


@pytest.fixture
def own(tmp_path, folders):
    """An index that a test may damage."""
    from tests.search.factories import index, photos

    photos(tmp_path / "photos", 3)
    index(tmp_path / "photos", tmp_path / "index", folders / "first")
    return tmp_path / "index"


@pytest.mark.parametrize("address", PLACES)
@pytest.mark.parametrize("trouble", ["gone", "rebuilt", "damaged"])
def test_unreadable_index_is_503(own, trouble, address):
    from bcls.search.service import Service
    from bcls.web import Site

    manifest = own / "index.json"
    with client_of(Site(Service(own)), raise_server_exceptions=False) as client:
        if trouble == "gone":
            manifest.unlink()
        else:
            content = json.loads(manifest.read_text())
            manifest.write_text("{" if trouble == "damaged" else json.dumps({**content, "calibration": {}}))
        answer = client.get(address)
        assert answer.status_code == 503, answer.text
        assert answer.headers["retry-after"] == "60"


def test_engine_errors_are_503(own, monkeypatch):
    from bcls.search.engine import IndexUnavailableError
    from bcls.search.service import Service
    from bcls.web import Site

    def lost(*_):
        raise IndexUnavailableError("`uri`: expected Milvus at http://there, got an error (gone); check it")

    def unread(*_):
        raise OSError(5, "the index cannot be read or written (disk I/O error)", "catalog.sqlite")

    site = Site(Service(own))
    with client_of(site) as client:
        monkeypatch.setattr(site.service.index.photos, "search", lost)
        assert "expected Milvus at http://there" in problem(client.get("/api/search?q=red"), 503)
        monkeypatch.setattr(site.service.index.catalog, "photos", unread)
        assert "disk I/O error" in problem(client.get("/api/photos/1"), 503)
