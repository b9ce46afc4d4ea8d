"""Sites and clients for the tests of the web app."""

import threading
import time
from contextlib import contextmanager

import numpy as np
import uvicorn
from starlette.testclient import TestClient

from bcls.search.score_model import ModelCalibration
from bcls.search.service import Service, ServiceSettings
from bcls.web import Site, WebSettings, create_app
from bcls.web.server import bind, server_config
from bcls.web.site import PairLabels

HERE = "http://127.0.0.1"


class ColourWords:
    """Text encoder that counts color words, so that labels are predictable."""

    name = "colour words"
    dimension = 7

    def encode(self, texts, progress=None):
        words = ("red", "green", "blue", "yellow", "black", "white")
        rows = np.array([[text.split().count(word) for word in words] + [0.1] for text in texts], np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make_site(folders, *, compare=True, cache=64, **settings):
    services = [
        Service(folders / name, settings=ServiceSettings(timeout=5, cache=cache))
        for name in (("index", "other") if compare else ("index",))
    ]
    labels = PairLabels(ColourWords()) if compare else None
    return Site(services[0], WebSettings(**settings), services[1] if compare else None, labels, folders / "runs")


def calibrated_site(folders):
    """A site whose model has a calibration: the thresholds for texts and images differ."""
    site = make_site(folders, compare=False)
    background = np.random.default_rng(0).normal(size=(9, 12)).astype(np.float32)
    background /= np.linalg.norm(background, axis=1, keepdims=True)
    site.service.calibration = ModelCalibration((-2, 10), (1, 2, 0.5, -0.5, 1), 0.3, (2, 4, 0.4, 0.1), background)
    return site


@contextmanager
def client_of(site, base_url=HERE, **options):
    with TestClient(create_app(site), base_url=base_url, **options) as client:
        yield client


@contextmanager
def listening(site):
    """Run the app on a real port; yields its address."""
    with bind("127.0.0.1", 0) as socket:
        server = uvicorn.Server(server_config(create_app(site), timeout=site.settings.timeout))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{socket.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
