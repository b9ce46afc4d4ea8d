"""Overload, slow requests and slow clients."""

import asyncio
import socket
import threading
import time
import urllib.request

import pytest
from starlette.exceptions import HTTPException

from bcls.web import create_app
from bcls.web.limiter import limit_body
from tests.web.factories import client_of, listening, make_site


@pytest.fixture
def held(folders, monkeypatch):
    """A site whose searches block until released."""
    site = make_site(folders, compare=False, at_once=2, timeout=0.3)
    go, started = threading.Event(), threading.Semaphore(0)
    real = site.service.search

    def slow(*arguments, **options):
        started.release()
        assert go.wait(20)
        return real(*arguments, **options)

    monkeypatch.setattr(site.service, "search", slow)
    with client_of(site) as client:
        yield client, go, started
        go.set()


def test_timed_out_requests_count_until_their_work_ends(held):
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
        pytest.fail("slots were never released")


def test_browsers_get_an_error_page(held):
    client, _, started = held
    threads = [threading.Thread(target=client.get, args=("/api/search?q=red",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert started.acquire(timeout=10)
    page = client.get("/", headers={"accept": "text/html"})
    assert page.status_code == 503
    assert "<h1>503</h1>" in page.text
    part = client.get("/results?q=red", headers={"x-fragment": "1"})
    assert '<div class="problem" role="alert">' in part.text
    for thread in threads:
        thread.join(10)


def test_uploads_are_limited(folders):
    site = make_site(folders, compare=False, timeout=0.5)
    content = (folders / "photos/0/000-red-red.png").read_bytes()
    with client_of(site) as client, site.upload_slot(), site.upload_slot():
        for address in ("/api/search", "/api/captions", "/results"):
            answer = client.post(address, files={"image": content})
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert "too many images at once" in answer.text
        assert client.get("/api/search?q=red").status_code == 200
    with client_of(make_site(folders, compare=False)) as client:
        assert client.post("/api/search", files={"image": content}).status_code == 200


def test_slow_body_is_408():
    async def never():
        await asyncio.sleep(60)

    with pytest.raises(HTTPException, match=r"did not arrive within 0\.05 s") as raised:
        asyncio.run(limit_body(never, 10, 0.05)())
    assert raised.value.status_code == 408


def test_waiting_for_a_disconnect_has_no_deadline():
    messages = [{"type": "http.request", "body": b"abc", "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await asyncio.sleep(0.1)
        return {"type": "http.disconnect"}

    async def read():
        limited = limit_body(receive, 3, 0.02)
        return [await limited(), await limited()]

    assert asyncio.run(read())[1]["type"] == "http.disconnect"


def scope_of(path):
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "scheme": "http",
    }


def test_files_are_sent_in_chunks_and_slow_clients_are_disconnected(folders, monkeypatch):
    site = make_site(folders, compare=False, at_once=1, timeout=0.3)
    monkeypatch.setattr("bcls.web.api.CHUNK", 64)
    app = create_app(site)
    sent = []

    async def receive():
        await asyncio.sleep(60)

    async def send(message, most):
        if len(sent) == most:
            await asyncio.sleep(60)
        sent.append(message)

    async def ask(most):
        sent.clear()
        await asyncio.wait_for(app(scope_of("/api/photos/1/file"), receive, lambda one: send(one, most)), 10)
        return sent[0]["status"]

    async def both():
        assert await ask(3) == 200
        assert len(sent) == 3
        assert max(len(message.get("body", b"")) for message in sent) == 64
        # The slot is free again.
        assert await ask(10**6) == 200
        assert sent[-1]["more_body"] is False

    asyncio.run(both())
    site.close()


def test_slow_client_of_a_real_server_is_disconnected(folders, monkeypatch, caplog):
    site = make_site(folders, compare=False, at_once=1, timeout=1)
    monkeypatch.setattr(site.service, "read_photo", lambda number: bytes(64 * 2**20))
    monkeypatch.setattr("bcls.web.api._media_type", lambda content, name: None)
    with listening(site) as address, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(address.rsplit(":", 1)[1])))
        client.sendall(b"GET /api/photos/1/file HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        refused, end = 0, time.monotonic() + 20
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{address}/api/search?q=red", timeout=5):  # noqa: S310
                    break
            except urllib.error.HTTPError as error:
                assert error.code == 503  # noqa: PT017
                refused += 1
                time.sleep(0.1)
        else:
            pytest.fail("the slot was never released")
    assert refused, "a file that is not read occupies its slot"
    assert "Traceback" not in caplog.text
