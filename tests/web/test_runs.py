"""Pages of training runs."""

import math
import re

import pytest

from bcls.web.curves import Line, curve, thinned, ticks
from bcls.web.runs import find_runs, read_run

PAGE = {"accept": "text/html"}


def test_all_runs(client):
    page = client.get("/runs", headers=PAGE).text
    assert '<a href="/runs/vsepp%20%3Cb%3E">vsepp &lt;b&gt;</a>' in page
    row = re.search(r"vsepp &lt;b&gt;</a>.*?</tr>", page, re.DOTALL)[0]
    assert re.findall(r"<td>(.*?)</td>", row) == ["vsepp", "bcls", "3", "102.0", "–", "–", "0.200", "–"]
    assert "damaged" in page
    assert page.count("<polyline") == 2


def test_one_run(client):
    page = client.get("/runs/vsepp%20%3Cb%3E", headers=PAGE).text
    assert "vsepp with bcls, 1000 steps" in page
    assert page.count("<figure") == 4  # no gradient in this one
    assert page.count("<polyline") == 6
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


def test_curves():
    assert curve("Loss", "step", [Line("a", [])]) is None
    one = curve("A <b>", "step", [Line("<i>", [(1.0, 5.0)]), Line("none", [])])
    assert "<circle" in one
    assert "<i>" not in one
    assert "A &lt;b&gt;" in one
    flat = curve("flat", "step", [Line("a", [(0.0, 0.0), (1.0, 0.0)])])
    places = re.search(r'points="([^"]+)"', flat)[1]
    assert all(math.isfinite(float(part)) for part in re.split("[ ,]", places))
    two = curve("two", "step", [Line("a", [(0.0, 0.0), (10.0, 4.0)])])
    start, end = (tuple(map(float, p.split(","))) for p in re.search(r'points="([^"]+)"', two)[1].split())
    assert start == (52.0, 206.0)
    assert end == (400.0, 10.0)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 7), (1e-9, 2e-9), (0, 1e9), (318.2, 318.4)])
def test_ticks_are_round_and_inside(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert low - 1e-6 * abs(high) <= found[0] <= found[-1] <= high + 1e-6 * abs(high)


def test_thinned_lines_keep_their_peaks():
    points = [(float(n), float(n == 777)) for n in range(10_000)]
    kept = thinned(points)
    assert len(kept) <= 400
    assert (777.0, 1.0) in kept
    assert kept == sorted(kept)
