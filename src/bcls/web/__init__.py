"""The web app: search, comparison of models and training runs in a browser, and the same searches as a JSON API."""

from bcls.web.app import create_app
from bcls.web.server import serve
from bcls.web.site import PairLabels, Site, WebSettings

__all__ = ["PairLabels", "Site", "WebSettings", "create_app", "serve"]
