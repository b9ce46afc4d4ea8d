"""Listening address, port and settings."""

import http.client
import socket

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
