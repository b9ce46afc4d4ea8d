"""One site for all tests of the web app: a small index, another of the same photos, and a run."""

import json
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn
from starlette.testclient import TestClient

from bcls.search import Service, ServiceSettings
from bcls.web import Site, WebSettings, create_app
from bcls.web.labels import QueryLabels
from bcls.web.server import bind
from tests.index.made import index, photos, tiny_model

HERE = "http://127.0.0.1"
CAPTIONS = {
    "0/000-red-red": "a red wall\nall red <script>alert(1)</script>",
    "1/001-green-red": "green above red",
    "2/002-blue-red": "blue above red",
}


class ColourWords:
    """Text encoder that counts words of colour, so that labels can be foretold."""

    name = "colour words"
    dimension = 7

    def encode(self, texts, progress=None):
        import numpy as np

        words = ("red", "green", "blue", "yellow", "black", "white")
        rows = np.array([[text.split().count(word) for word in words] + [0.1] for text in texts], np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Photos, two indexes of them with different models, and a folder of runs."""
    place = tmp_path_factory.mktemp("web")
    with pytest.MonkeyPatch.context() as patch:
        models = [tiny_model(patch, place / name, regions=name == "second") for name in ("first", "second")]
        source = photos(place / "photos")
        for name, text in CAPTIONS.items():
            (source / f"{name}.txt").write_text(text)
        for name, model in zip(("index", "other"), models, strict=True):
            index(source, place / name, model)
        run = place / "runs" / "vsepp <b>"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("model: {name: vsepp}\nloss: {name: bcls}\n")
        lines = [
            {"kind": "step", "epoch": 1, "step": n, "loss": 2 / n, "binary": 1 / n, "continuous": 1 / n, "lr": 0.1}
            for n in range(1, 1001)
        ]
        lines += [
            {"kind": "validation", "epoch": n, "step": n, "rsum": 100.0 + n, "i2t_tau_a": 0.1 * n, "best": n < 3}
            for n in (1, 2, 3)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (place / "runs" / "broken").mkdir()
        (place / "runs" / "broken" / "metrics.jsonl").write_text("no json\n")
        yield place


def make_site(folders, *, compare=True, cache=64, **settings):
    services = [
        Service(folders / name, settings=ServiceSettings(timeout=5, cache=cache))
        for name in (("index", "other") if compare else ("index",))
    ]
    labels = QueryLabels(ColourWords()) if compare else None
    return Site(services[0], WebSettings(**settings), services[1] if compare else None, labels, folders / "runs")


@contextmanager
def client_of(site, base_url=HERE, **options):
    with TestClient(create_app(site), base_url=base_url, **options) as client:
        yield client


@pytest.fixture(scope="session")
def client(folders):
    with client_of(make_site(folders)) as client:
        yield client


@contextmanager
def listening(site):
    """The app on a real port of this machine; its address."""
    with bind("127.0.0.1", 0) as socket:
        config = uvicorn.Config(
            create_app(site), http="h11", log_level="warning", h11_max_incomplete_event_size=256 * 1024
        )
        server = uvicorn.Server(config)
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
