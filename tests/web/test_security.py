"""Token, login, hosts, cross-site requests and security headers."""

import re
import time

import pytest

from bcls.web.security import COOKIE, HEADERS
from bcls.web.site import LOGIN_SECONDS, WRONG_TOKENS
from tests.web.factories import client_of, make_site

TOKEN = "a secret of the house"  # noqa: S105
PAGE = {"accept": "text/html"}


@pytest.fixture(scope="module")
def locked(folders):
    site = make_site(folders, compare=False, token=TOKEN, any_host=True)
    with client_of(site, "http://photos.example", follow_redirects=False) as client:
        yield client


def test_every_route_needs_the_token(locked):
    locked.cookies.clear()
    every = [path for path in locked.app.openapi()["paths"] if path != "/healthz"]
    for path in [*every, "/api/openapi.json", "/runs", "/compare", "/results", "/photo/1", "/duplicates", "/nowhere"]:
        answer = locked.get(path.replace("{number}", "1"))
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer TOKEN" in answer.json()["detail"]
    assert locked.post("/api/search", files={"image": b"x"}).status_code == 401
    assert locked.post("/download", data={"number": "1"}).status_code == 401
    assert locked.get("/healthz").status_code == 200
    assert locked.get("/static/app.css").status_code == 200
    page = locked.get("/", headers=PAGE)
    assert [page.status_code, page.headers["location"]] == [303, "/login"]
    part = locked.get("/results?q=red", headers={"x-fragment": "1"})
    assert part.status_code == 401
    assert "<html" not in part.text


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"])
def test_wrong_tokens(locked, given):
    locked.cookies.clear()
    assert locked.get("/api/search?q=red", headers={"authorization": given.encode()}).status_code == 401


def test_correct_token(locked):
    locked.cookies.clear()
    assert locked.get("/api/search?q=red", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert locked.get("/api/search?q=red", headers={"authorization": f"bearer  {TOKEN}"}).status_code == 200


def test_login_and_logout(locked):
    locked.cookies.clear()
    wrong = locked.post("/login", data={"token": "no"}, headers=PAGE)
    assert wrong.status_code == 401
    assert "This token is wrong" in wrong.text
    assert "set-cookie" not in wrong.headers
    right = locked.post("/login", data={"token": TOKEN})
    assert [right.status_code, right.headers["location"]] == [303, "/"]
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert locked.get("/api/search?q=red").status_code == 200
    locked.post("/logout")
    assert locked.get("/api/search?q=red").status_code == 401


def test_a_login_leads_to_the_page_that_was_opened(locked):
    redirect = locked.get("/?q=a+dog&fits=0.5", headers=PAGE)
    assert redirect.headers["location"] == "/login?to=%2F%3Fq%3Da%2Bdog%26fits%3D0.5"
    assert 'name="to" value="/?q=a+dog&amp;fits=0.5"' in locked.get(redirect.headers["location"]).text
    right = locked.post("/login", data={"token": TOKEN, "to": "/?q=a+dog&fits=0.5"})
    assert right.headers["location"] == "/?q=a+dog&fits=0.5"
    wrong = locked.post("/login", data={"token": "no", "to": '/"><b>'}, headers=PAGE)
    assert 'name="to" value="/&#34;&gt;&lt;b&gt;"' in wrong.text
    for other in ("//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "evil", ""):
        assert locked.post("/login", data={"token": TOKEN, "to": other}).headers["location"] == "/", other
    # Browsers leave out tabs and line breaks of an address; they are sent encoded.
    assert locked.post("/login", data={"token": TOKEN, "to": "/\t/evil"}).headers["location"] == "/%09/evil"


def test_login_cookie_is_secure_over_https(folders):
    site = make_site(folders, compare=False, token=TOKEN, any_host=True)
    with client_of(site, "https://photos.example", follow_redirects=False) as client:
        assert "; Secure" in client.post("/login", data={"token": TOKEN}).headers["set-cookie"]


def log_in(client):
    """Value of a new login cookie; the client itself keeps none."""
    answer = client.post("/login", data={"token": TOKEN})
    client.cookies.clear()
    return answer.cookies[COOKIE]


def ask(client, login):
    return client.get("/api/photos/1", headers={"cookie": f"{COOKIE}={login}"}).status_code


def test_a_cookie_does_not_outlive_logout(locked):
    first, second = log_in(locked), log_in(locked)
    assert [ask(locked, first), ask(locked, second)] == [200, 200]
    locked.post("/logout", headers={"cookie": f"{COOKIE}={first}"})
    assert [ask(locked, first), ask(locked, second)] == [401, 200]


def test_logins_expire(locked, monkeypatch):
    login = log_in(locked)
    now = time.time()
    monkeypatch.setattr("bcls.web.site.time.time", lambda: now + LOGIN_SECONDS - 10)
    assert ask(locked, login) == 200
    monkeypatch.setattr("bcls.web.site.time.time", lambda: now + LOGIN_SECONDS + 10)
    assert ask(locked, login) == 401


def test_forged_cookies(locked):
    login = log_in(locked)
    for forged in ("", ".", login[:-1], login + "x", login.swapcase(), "\x01;;=="):
        assert ask(locked, forged) == 401
    assert ask(locked, login) == 200


def test_malformed_cookies_beside_the_login(locked):
    value = f'prefs={{"a":1}}; {COOKIE}={log_in(locked)}; x'
    assert locked.get("/api/photos/1", headers={"cookie": value}).status_code == 200


@pytest.mark.parametrize("way", ["login", "bearer"])
def test_wrong_tokens_are_slowed_down(folders, monkeypatch, way):
    site = make_site(folders, compare=False, token=TOKEN, any_host=True)
    clock = [1000.0]
    monkeypatch.setattr("bcls.web.site.time.monotonic", lambda: clock[0])

    def attempt(token):
        if way == "login":
            return client.post("/login", data={"token": token})
        return client.get("/api/photos/1", headers={"authorization": f"Bearer {token}"})

    with client_of(site, "http://photos.example", follow_redirects=False) as client:
        login = log_in(client)
        assert {attempt("wrong").status_code for _ in range(WRONG_TOKENS)} == {401}
        for token in ("wrong", TOKEN):
            refused = attempt(token)
            assert [refused.status_code, refused.headers["retry-after"]] == [429, "1"]
            assert "too many wrong tokens" in refused.text
        assert ask(client, login) == 200  # logins are not affected
        clock[0] += 1
        assert attempt("wrong").status_code == 401
        assert attempt("wrong").status_code == 429
        clock[0] += 1
        assert attempt(TOKEN).status_code in {200, 303}
        assert {attempt("wrong").status_code for _ in range(3)} == {401, 429}
        assert site.wrong_tokens.wait("another address") == 0


POSTS = ["/api/search", "/api/captions", "/results", "/download", "/logout", "/login"]


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:9999", "null", "http://127.0.0.1.evil"])
@pytest.mark.parametrize("address", POSTS)
def test_foreign_origins_are_rejected(client, address, origin):
    assert client.post(address, headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("address", POSTS)
def test_posts_of_other_sites_are_rejected(client, address, site):
    assert client.post(address, headers={"sec-fetch-site": site, "sec-fetch-mode": "navigate"}).status_code == 403


def test_own_origin_is_accepted(client, folders):
    files = {"image": (folders / "photos/0/000-red-red.png").read_bytes()}
    own = [{"origin": "http://127.0.0.1"}, {"origin": "https://proxy.example", "sec-fetch-site": "same-origin"}, {}]
    for headers in own:
        assert client.post("/api/search", files=files, headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["photos.example/login?", "photos.example/static/", "[", "x/healthz#"])
def test_host_header_with_a_path_does_not_bypass_the_token(locked, host):
    locked.cookies.clear()
    for path in ("/api/search?q=red", "/photo/1"):
        assert locked.get(path, headers={"host": host}).status_code == 401
        assert locked.get(path, headers={"host": host, **PAGE}).status_code in {303, 401}


def test_login_without_a_token_is_404(client):
    assert client.post("/login", data={"token": "x"}).status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::2]"])
def test_foreign_hosts_are_rejected(client, host):
    answer = client.get("/api/search?q=red", headers={"host": host})
    assert answer.status_code == 421
    assert "use one of these" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000"])
def test_local_hosts_are_accepted(client, host):
    assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_cross_site_requests_may_navigate_but_not_load(client):
    from_other = {"sec-fetch-site": "cross-site"}
    assert client.get("/", headers={**from_other, "sec-fetch-mode": "navigate"}).status_code == 200
    assert client.get("/api/photos/1/file", headers={**from_other, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert client.post("/results", headers={**from_other, "sec-fetch-mode": "navigate"}).status_code == 403


@pytest.mark.parametrize(
    "address", ["/", "/api/search?q=red", "/nowhere", "/api/photos/1/file", "/static/app.js", "/healthz"]
)
def test_security_headers_on_every_response(client, address):
    headers = client.get(address).headers
    for name, value in HEADERS.items():
        assert headers[name] == value


@pytest.mark.parametrize(
    "address", ["/?q=red", "/photo/1", "/compare?q=red", "/runs", "/runs/vsepp%20%3Cb%3E", "/about/api"]
)
def test_pages_have_no_inline_code_and_no_external_resources(client, address):
    page = client.get(address, headers=PAGE).text
    assert "<style" not in page
    assert " style=" not in page
    assert not re.search(r"<script(?![^>]* src=\"/static/)", page)
    assert not re.search(r"\son\w+=", page)
    assert not re.search(r"(src|href|action)=\"(https?:)?//", page)
