"""Templates and the files that pages load, read once."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

import bcls

_KINDS = {".css": "text/css", ".js": "text/javascript", ".txt": "text/plain", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class StaticFile:
    """A file that pages load.

    Attributes:
        content: Its bytes.
        kind: Its media type.
        version: Changes with the contents.
    """

    content: bytes
    kind: str
    version: str


@cache
def static_files() -> dict[str, StaticFile]:
    """All of them by name; requests choose among these and never reach the disk."""
    found = {}
    for file in resources.files("bcls.web").joinpath("static").iterdir():
        ending = "." + file.name.rsplit(".", 1)[-1]
        if ending in _KINDS:
            content = file.read_bytes()
            version = hashlib.sha256(content).hexdigest()[:12]
            found[file.name] = StaticFile(content, f"{_KINDS[ending]}; charset=utf-8", version)
    return found


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bcls.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["day"] = lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
    environment.globals["static"] = lambda name: f"/static/{name}?v={static_files()[name].version}"
    environment.globals["version"] = bcls.__version__
    return environment


def html(
    request: Request,
    template: str,
    values: Mapping[str, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """A page, or a part of one; every value is escaped.

    Args:
        request: Its app's site says which views there are.
        template: Name of the template.
        values: What it shows.
        status: The HTTP status.
        headers: More headers.
    """
    site = request.app.state.site
    shared = {
        "path": request.scope["path"],
        "has_compare": site.other is not None,
        "has_runs": site.runs is not None,
        "has_token": site.settings.token is not None,
        "max_upload": site.settings.max_upload,
    }
    text = _templates().get_template(template).render({**shared, **values})
    # The same address gives a page or a part of it, and photos of one person are nobody else's.
    fixed = {"Vary": "HX-Request", "Cache-Control": "private, no-store"}
    return HTMLResponse(text, status, {**fixed, **(headers or {})})
