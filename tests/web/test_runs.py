"""Pages of training runs."""

import re
import sys
from html import unescape

from bcls.web.runs import find_runs, read_run

PAGE = {"accept": "text/html"}


def charts(page):
    return [unescape(alt) for alt in re.findall(r'<img src="data:image/svg\+xml;base64,[^"]+" alt="([^"]*)"', page)]


def test_all_runs(client):
    page = client.get("/runs", headers=PAGE).text
    assert '<a href="/runs/vsepp%20%3Cb%3E">vsepp &lt;b&gt;</a>' in page
    row = re.search(r"vsepp &lt;b&gt;</a>.*?</tr>", page, re.DOTALL)[0]
    assert re.findall(r"<td>(.*?)</td>", row) == ["vsepp", "bcls", "3", "102.0", "–", "–", "0.200", "–"]
    assert "damaged" in page
    assert charts(page) == [
        "RSUM by epoch. vsepp <b>: 101 at 1, 103 at 3.",
        "Tau, image to text by epoch. vsepp <b>: 0.1 at 1, 0.3 at 3.",
    ]


def test_one_run(client):
    page = client.get("/runs/vsepp%20%3Cb%3E", headers=PAGE).text
    assert "vsepp with bcls, 1000 steps" in page
    assert [chart.partition(" by")[0] for chart in charts(page)] == [
        "Loss",
        "Learning rate",
        "Validation RSUM",
        "Validation tau",
    ]
    assert "2 (best)" in page
    assert "model: {name: vsepp}" in page


def test_missing_and_damaged_runs(client):
    assert client.get("/runs/..%2f..%2fetc", headers=PAGE).status_code == 404
    assert "see /runs" in client.get("/runs/none", headers=PAGE).text
    broken = client.get("/runs/broken", headers=PAGE)
    assert broken.status_code == 200
    assert "metrics.jsonl cannot be read" in broken.text


def test_find_runs(folders, tmp_path):
    assert list(find_runs(folders / "runs")) == ["broken", "vsepp <b>"]
    assert list(find_runs(folders / "runs" / "broken")) == ["broken"]
    assert find_runs(tmp_path) == {}
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "metrics.jsonl").write_text('{"kind": "step", "epoch": 1, "step": 1, "loss": NaN}\n{"kind": "ste')
    (deep / "config.yaml").write_text("model: vsepp\n")
    run = read_run("a/b", find_runs(tmp_path)["a/b"])
    assert [len(run.steps), run.validations, run.best, run.model, run.error] == [1, [], {}, "–", ""]


def test_no_runs_yet(folders, tmp_path):
    from dataclasses import replace

    from tests.web.factories import client_of, make_site

    site = make_site(folders, compare=False)
    with client_of(replace(site, runs=tmp_path)) as client:
        assert "No folder contains a metrics.jsonl yet" in client.get("/runs", headers=PAGE).text


def test_without_matplotlib_the_pages_have_a_hint(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for path in ("/runs", "/runs/vsepp%20%3Cb%3E"):
        page = client.get(path, headers=PAGE).text
        assert "drawing charts needs matplotlib: pip install &#34;bcls[reports]&#34;" in page
        assert charts(page) == []
