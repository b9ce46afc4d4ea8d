"""Listening address, port and settings."""

import http.client
import socket
import time
from contextlib import ExitStack, suppress

import pytest

from bcls.web.server import bind, check_address
from bcls.web.site import WebSettings
from tests.web.factories import listening, make_site


def test_sockets_are_known_to_be_tcp(folders):
    # asyncio sets TCP_NODELAY only on sockets that are known to be TCP.
    with bind("127.0.0.1", 0) as found:
        assert found.proto == socket.IPPROTO_TCP
        with socket.create_connection(found.getsockname()):
            accepted, _ = found.accept()
            assert accepted.proto == socket.IPPROTO_TCP
            accepted.close()


def test_very_long_query_over_a_real_connection(folders):
    with listening(make_site(folders, compare=False)) as address:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
        connection.request("GET", "/api/search?q=" + "x" * 100_000)
        answer = connection.getresponse()
        assert answer.status == 422
        assert b"at most 2000 characters, got 100000" in answer.read()
        connection.close()


def connect(address):
    return socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), timeout=10)


def is_closed(connection, seconds):
    """Whether the server closes a connection in time."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


HEADERS = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize("sent", [b"", b"G", HEADERS, HEADERS + b"X-A: 1\r\n"])
def test_connections_without_a_complete_request_are_closed(folders, sent):
    with listening(make_site(folders, compare=False, timeout=1)) as address, connect(address) as connection:
        connection.sendall(sent)
        assert not is_closed(connection, 0.3)
        assert is_closed(connection, 3)


def test_slow_headers_are_closed_while_they_arrive(folders):
    with listening(make_site(folders, compare=False, timeout=1)) as address, connect(address) as connection:
        connection.sendall(HEADERS)
        started = time.monotonic()
        with suppress(OSError):
            while time.monotonic() < started + 5:
                connection.sendall(b"X-A: 1\r\n")
                if is_closed(connection, 0.1):
                    break
        assert time.monotonic() < started + 3


def test_idle_connections_are_closed_after_a_response(folders):
    with listening(make_site(folders, compare=False, timeout=1)) as address, connect(address) as connection:
        for _ in range(3):
            time.sleep(0.6)
            connection.sendall(HEADERS + b"\r\n")
            received = b""
            while not received.endswith(b'{"status":"ok"}'):
                received += connection.recv(1000)
        connection.sendall(b"GET /he")
        assert is_closed(connection, 3)


def test_requests_are_not_limited_by_the_time_for_headers(folders, monkeypatch):
    site = make_site(folders, compare=False, timeout=3)
    monkeypatch.setattr("bcls.web.server.math.ceil", lambda seconds: 1)
    real = site.service.search
    monkeypatch.setattr(site.service, "search", lambda *given, **more: time.sleep(2) or real(*given, **more))
    with listening(site) as address, connect(address) as connection:
        connection.sendall(HEADERS.replace(b"/healthz", b"/api/search?q=red") + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("token", [None, "a secret of the house"])
def test_many_idle_connections_do_not_block_others(folders, token):
    site = make_site(folders, compare=False, timeout=60, token=token)
    with listening(site) as address, ExitStack() as stack:
        for number in range(1040):
            idle = stack.enter_context(connect(address))
            if number % 2:
                idle.sendall(HEADERS)
        with connect(address) as connection:
            connection.sendall(HEADERS + b"\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_an_address_of_another_machine():
    with pytest.raises(ValueError, match=r"`--host`: expected an address of this machine, got 192.0.2.1; 127"):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "photos.example"])  # noqa: S104
def test_a_network_needs_a_token_or_a_proxy(host):
    with pytest.raises(ValueError, match="the whole network could see the photos"):
        check_address(host, has_token=False, behind_proxy=False)
    check_address(host, has_token=True, behind_proxy=False)
    check_address(host, has_token=False, behind_proxy=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": "short"},
        {"token": "long enough, but é"},
        {"at_once": 0},
        {"timeout": 0},
        {"max_upload": 0},
        {"max_pixels": 0},
    ],
)
def test_invalid_settings(wrong):
    with pytest.raises(ValueError, match=rf"`{next(iter(wrong))}`: expected"):
        WebSettings(**wrong)
