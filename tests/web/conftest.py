"""One site for all tests of the web app: two small indexes of the same photos, and training runs."""

import json

import pytest

from tests.search.factories import index, photos, tiny_model
from tests.web.factories import client_of, make_site

CAPTIONS = {
    "0/000-red-red": "a red wall\nall red <script>alert(1)</script>",
    "1/001-green-red": "green above red",
    "2/002-blue-red": "blue above red",
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Photos, two indexes of them with different models, and training runs."""
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


@pytest.fixture(scope="session")
def client(folders):
    with client_of(make_site(folders)) as client:
        yield client
