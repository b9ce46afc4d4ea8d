"""``bcls serve``: the web app of an index."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bcls._core.errors import check_whole, fail
from bcls.cli.arguments import parse
from bcls.search.service import Service, ServiceSettings

if TYPE_CHECKING:
    from bcls.web import Site, WebSettings


@dataclass(frozen=True)
class ServeSettings:
    """Serve the search page of an index at http://127.0.0.1:8000, and a JSON API (see /about/api).

    By default only this machine can connect; another --host needs --token or --behind-proxy.

    Attributes:
        index: Folder of the index.
        host: Address to listen on.
        port: Port to listen on; 0 for any free port.
        token: Access token, or @FILE to read it from a file; at least 16 characters.
        behind_proxy: A proxy controls access and host names.
        compare: A second index, of the same photos with another model, for the compare view.
        labels: Text encoder of the labels in the compare view; none for no labels.
        runs: Folder of training runs, for the runs view.
        model: Location of the index's model, if it was moved.
        cache: Cache the vectors of recent texts.
        rerank: Number of results that a cross-attention model reranks.
        at_once: Maximum number of requests that are processed or waiting; others get status 503.
        timeout: Seconds for a request.
        max_upload: Maximum size of an uploaded image file, in MiB.
        max_pixels: Maximum number of pixels of an uploaded image.
    """

    index: str
    host: str = "127.0.0.1"
    port: int = 8000
    token: str = "none"  # noqa: S105 - not a password
    behind_proxy: bool = False
    compare: str | None = None
    labels: str = "minilm"
    runs: str | None = None
    model: str | None = None
    cache: bool = True
    rerank: int = 50
    at_once: int = 64
    timeout: float = 15.0
    max_upload: int = 20
    max_pixels: int = 40_000_000


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("serve", ServeSettings, arguments, positional={"index": "INDEX"}, imports=True)
    from bcls._core.extras import require

    for module in ("fastapi", "uvicorn", "jinja2", "python_multipart", "prometheus_client"):
        require(module, "web", "the web app")
    from bcls.web import WebSettings, create_app, serve
    from bcls.web.server import bind, check_address, server_config

    token = _token(settings.token)
    check_address(settings.host, has_token=token is not None, behind_proxy=settings.behind_proxy)
    check_whole("--max-upload", settings.max_upload, least=1)
    limits = WebSettings(
        token=token,
        any_host=token is not None or settings.behind_proxy,
        at_once=settings.at_once,
        timeout=settings.timeout,
        max_upload=settings.max_upload * 2**20,
        max_pixels=settings.max_pixels,
    )
    # Before the models are loaded, so that a port in use is reported at once.
    with bind(settings.host, settings.port) as listening:
        site = _site(settings.index, settings, limits)
        name = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{name}:{listening.getsockname()[1]}"

        def ready() -> None:
            print(f"{site.service.index.catalog.count()} photos at {address} (Ctrl-C to stop)", flush=True)

        try:
            config = server_config(create_app(site), timeout=limits.timeout, behind_proxy=settings.behind_proxy)
            serve(config, listening, ready)
        except KeyboardInterrupt:
            print("bcls serve: stopped", file=sys.stderr)
            return 130
    return 0


def _site(folder: str, settings: ServeSettings, limits: "WebSettings") -> "Site":
    from bcls.web import PairLabels, Site

    runs = None if settings.runs is None else Path(settings.runs)
    if runs is not None and not runs.is_dir():
        fail("--runs", "a folder of training runs", settings.runs, "give the parent folder of the runs")
    service = _service(folder, settings, settings.model)
    other = labels = None
    if settings.compare is not None:
        other = _service(settings.compare, settings, None)
        if settings.labels != "none":
            from bcls.labels.encoders import load_text_encoder

            labels = PairLabels(load_text_encoder(settings.labels))
    return Site(service, limits, other, labels, runs)


def _service(folder: str, settings: ServeSettings, model: str | None) -> Service:
    cache = ServiceSettings().cache if settings.cache else 0
    limits = ServiceSettings(cache=cache, rerank=settings.rerank, timeout=settings.timeout, queue=settings.at_once)
    return Service(folder, model, limits)


def _token(given: str) -> str | None:
    """The token, read from its file if one is named. An empty token is an error: it would open the app to everyone."""
    if given == "none":
        return None
    if not given.startswith("@"):
        if not given:
            fail("--token", "at least 16 characters, or @FILE", "an empty token", "omit the flag for no token")
        return given
    try:
        token = Path(given[1:]).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        fail("--token", f"text in {given[1:]}", "other bytes", "put only the token in the file")
    if not token:
        fail("--token", f"at least 16 characters in {given[1:]}", "an empty file", "put the token in the file")
    return token
