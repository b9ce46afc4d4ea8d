"""Load and slow requests: answers in time, and no pile-up."""

import asyncio
import threading

import pytest
from starlette.exceptions import HTTPException

from bcls.web.gate import _limited
from tests.web.made import client_of, make_site


@pytest.fixture
def held(folders, monkeypatch):
    """A site whose searches wait until they are let go."""
    site = make_site(folders, compare=False, at_once=2, timeout=0.3)
    go, started = threading.Event(), threading.Semaphore(0)
    real = site.service.search

    def slow(*arguments):
        started.release()
        assert go.wait(20)
        return real(*arguments)

    monkeypatch.setattr(site.service, "search", slow)
    with client_of(site) as client:
        yield client, go, started
        go.set()


def test_time_is_limited_and_places_stay_taken_until_work_ends(held):
    client, go, started = held
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(client.get("/api/search?q=red"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert started.acquire(timeout=10)
    refused = client.get("/api/search?q=blue")
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert "too many requests at once" in refused.json()["detail"]
    assert client.get("/healthz").status_code == 200
    assert client.get("/metrics").status_code == 200
    for thread in threads:
        thread.join(10)
    assert [answer.status_code for answer in answers] == [503, 503]
    assert "took longer than 0.3 s" in answers[0].json()["detail"]
    # Both were answered, but their threads still run.
    assert client.get("/api/search?q=blue").status_code == 503
    go.set()
    for _ in range(100):
        if client.get("/api/search?q=blue").status_code == 200:
            break
        threading.Event().wait(0.05)
    else:
        pytest.fail("places were never given back")


def test_people_see_a_page(held):
    client, _, started = held
    threads = [threading.Thread(target=client.get, args=("/api/search?q=red",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert started.acquire(timeout=10)
    page = client.get("/", headers={"accept": "text/html"})
    assert page.status_code == 503
    assert "<h1>503</h1>" in page.text
    part = client.get("/results?q=red", headers={"hx-request": "true"})
    assert '<div class="problem" role="alert">' in part.text
    for thread in threads:
        thread.join(10)


def test_pictures_take_turns(folders):
    site = make_site(folders, compare=False, timeout=0.2)
    content = (folders / "photos/0/000-red-red.png").read_bytes()
    with client_of(site) as client, site.turn(), site.turn():
        for address in ("/api/search", "/api/captions", "/results"):
            answer = client.post(address, files={"image": content})
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert "too many pictures at once" in answer.text
        assert client.get("/api/search?q=red").status_code == 200
    with client_of(make_site(folders, compare=False)) as client:
        assert client.post("/api/search", files={"image": content}).status_code == 200


def test_a_body_that_does_not_come():
    async def never():
        await asyncio.sleep(60)

    with pytest.raises(HTTPException, match=r"did not arrive within 0\.05 s") as told:
        asyncio.run(_limited(never, 10, 0.05)())
    assert told.value.status_code == 408


def test_waiting_for_a_client_to_leave_has_no_deadline():
    messages = [{"type": "http.request", "body": b"abc", "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await asyncio.sleep(0.1)
        return {"type": "http.disconnect"}

    async def read():
        limited = _limited(receive, 3, 0.02)
        return [await limited(), await limited()]

    assert asyncio.run(read())[1]["type"] == "http.disconnect"
