"""The web app: search, compare and runs in a browser, and the same as a JSON API."""

from bcls.web.app import create_app
from bcls.web.server import serve
from bcls.web.settings import WebSettings
from bcls.web.site import Site

__all__ = ["Site", "WebSettings", "create_app", "serve"]
