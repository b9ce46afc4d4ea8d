import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from bcls._core.extras import MissingExtraError
from bcls.data.synthetic import make_scenes, render_all, true_relevance
from bcls.experiments.demo_report import JudgedSplit, pick, top, write_report
from bcls.experiments.demo_results import COLOURS, FIGURES, LOSSES, PLOTS, Run, curve_svgs

VOID = {"meta", "link", "img", "br", "hr", "col"}
SETTINGS = {"images": 100, "out <folder>": "a & b", "batch": 8}
SPACE = "\u00a0"


class Page(HTMLParser):
    """Counts elements, and fails where one is closed that is not open."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def all(self, tag):
        return [attrs for found, attrs in self.tags if found == tag]

    @property
    def text(self):
        return " ".join("".join(self.words).replace(SPACE, " ").split())


@pytest.fixture(scope="module")
def split():
    data = make_scenes(12, seed=5)
    true = true_relevance(data.scenes, data.captions)
    texts = ["<script>alert('x')</script> & a dog", *data.texts[1:]]
    return JudgedSplit(render_all(data.scenes, size=48), texts, data.image_of_caption, true * 0.5 + 0.25, true)


def make_run(split, loss, seed=0, tau=0.2, rsum=300.0, last=0.3):
    noise = np.random.default_rng([seed, len(loss)]).normal(size=split.true.shape)
    figures = {key: 40.0 + seed for key, _, _ in FIGURES}
    return Run(
        loss=loss,
        seed=seed,
        epochs=[1, 2, 3],
        train_loss=[1.0, 0.6, last],
        val_rsum=[100.0, 200.0 + seed, rsum],
        val_tau_true=[0.1, 0.15, tau],
        test=figures | {"rsum": rsum + seed, "tau_pseudo": tau / 2, "tau_true": tau + seed * 0.002},
        seconds=1.5,
        similarity=(split.true + noise * 0.3).astype(np.float32),
    )


@pytest.fixture
def write(split, tmp_path):
    def written(runs, seconds=75.0):
        path = tmp_path / "report.html"
        write_report(path, runs, split, SETTINGS, seconds)
        return path.read_text(encoding="utf-8")

    return written


@pytest.fixture
def nine(split):
    return [make_run(split, loss, seed) for seed in range(3) for loss in LOSSES]


def test_the_page_is_whole(write, nine):
    html = write(nine)
    page = Page(html)
    assert html.startswith("<!doctype html>")
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("title")) >= 1
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert "12 pictures and 60 captions" in page.text
    assert "over 3 seeds" in page.text
    assert "Everything took 1 min 15 s" in page.text
    for name in LOSSES.values():
        assert name in page.text
    assert "bcls demo --images 4000 --epochs 8" in page.text
    assert "loss(similarity, relevance, image_ids=ids)" in page.text
    assert all("scope" in cell for cell in page.all("th"))
    assert all(image["alt"] for image in page.all("img"))


def test_needs_nothing_else(write, nine):
    html = write(nine)
    page = Page(html)
    for _, attrs in page.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            assert attrs.get(name, "#").startswith(("data:", "#"))
    assert re.findall(r"https?://|@import|\burl\((?!#)", html) == []
    assert page.all("script") == []
    policy = next(one["content"] for one in page.all("meta") if "http-equiv" in one)
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert len(html.encode()) < 1_500_000


def test_same_input_gives_same_bytes(write, nine):
    assert write(nine) == write(nine)


def test_escapes_what_it_was_given(split, tmp_path, nine):
    bad = JudgedSplit(split.pixels, split.texts[:1] * 60, split.image_of_caption, split.pseudo, split.true)
    write_report(tmp_path / "report.html", nine, bad, SETTINGS, 1.0)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in html
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; a dog" in html
    assert "<script>alert('x')</script> & a dog" in Page(html).text
    assert "<dt>out &lt;folder&gt;</dt><dd>a &amp; b</dd>" in html


def test_figures_are_printed_with_their_digits(write, split):
    runs = [make_run(split, "bcls", seed, tau=0.25) for seed in (0, 2)] + [make_run(split, "triplet-sn", tau=0.2)]
    html = write(runs)
    assert '<td><strong>301.0</strong> <span class="dev">±&nbsp;1.4</span></td>' in html
    assert '<td><strong>0.252</strong> <span class="dev">±&nbsp;0.003</span></td>' in html
    assert "<td>0.200</td>" in html
    assert "over 1 to 2 seeds (Triplet-SN 1, BCLS 2)" in html


def test_right_and_wrong_results_are_marked(split, tmp_path):
    good, bad = make_run(split, "bcls"), make_run(split, "triplet-hn")
    good.similarity[:] = split.true
    good.similarity[split.image_of_caption, range(60)] = 2.0
    bad.similarity[:] = -split.true
    write_report(tmp_path / "report.html", [bad, good], split, SETTINGS, 1.0)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    # Four captions with one picture each, two pictures with five captions each, under the loss that finds them all.
    assert html.count('<li class="truth"><figure>') == 4
    assert html.count('<li class="truth"><p>') == 10
    assert html.count("✓</span> match") == 14
    shown = re.findall(r'<li class="(\w+)">(?:<figure>|<p>).*?\[([\d.]+)\].*?true ([\d.]+)<', html)
    assert len(shown) == (4 + 2) * 2 * 5
    for kind, pseudo, true in shown:
        assert abs(float(pseudo) - (float(true) * 0.5 + 0.25)) <= 0.011
        if kind != "truth":
            assert (kind == "wrong") == (float(true) < 0.2)


@pytest.mark.parametrize(
    ("tau", "rsum", "sentence"),
    [
        (0.22, 288.0, "BCLS ranks 10 % closer to the true relevance than Triplet-SN (τ true 0.220 against 0.200); "
                      "its RSUM is 4 % lower (288.0 against 300.0)."),
        (0.15, 330.0, "BCLS ranks 25 % further from the true relevance than Triplet-SN (τ true 0.150 against 0.200); "
                      "its RSUM is 10 % higher (330.0 against 300.0)."),
        (0.2, 300.0, "BCLS ranks as close to the true relevance as Triplet-SN (τ true 0.200 against 0.200); "
                     "its RSUM is the same (300.0 against 300.0)."),
        (0.201, 300.1, "BCLS ranks less than 1 % closer to the true relevance than Triplet-SN (τ true 0.201 against "
                       "0.200); its RSUM is less than 1 % higher (300.1 against 300.0)."),
        (-0.1, 900.0, "BCLS ranks far further from the true relevance than Triplet-SN (τ true -0.100 against 0.200); "
                      "its RSUM is far higher (900.0 against 300.0)."),
    ],
)  # fmt: skip
def test_the_sentence_says_what_the_numbers_say(write, split, tau, rsum, sentence):
    runs = [make_run(split, "triplet-sn"), make_run(split, "bcls", tau=tau, rsum=rsum)]
    text = Page(write(runs)).text
    assert sentence in text
    assert "no telling how much of this is chance" in text


def test_a_difference_within_the_spread_is_called_so(write, split):
    near = [make_run(split, "triplet-sn", seed) for seed in (0, 1)]
    near += [make_run(split, "bcls", seed, tau=0.201, rsum=400.0) for seed in (0, 1)]
    text = Page(write(near)).text
    assert "(τ true 0.202 ± 0.001 against 0.201 ± 0.001, within the spread of the seeds)" in text
    assert "33 % higher (400.5 ± 0.7 against 300.5 ± 0.7)." in text
    assert "chance" not in text


def test_stalling_is_told_only_where_it_is(write, split):
    runs = [make_run(split, "triplet-hn", seed, last=last) for seed, last in enumerate((0.401, 0.383, 0.25))]
    assert "Triplet-HN stalled in 2 of 3 seeds: its training loss ended at 0.392" in Page(write(runs)).text
    assert "stalled" not in write([make_run(split, "triplet-sn", last=0.4), make_run(split, "triplet-hn", last=0.3)])


@pytest.mark.parametrize("there", [["bcls"], ["triplet-hn"], ["triplet-hn", "triplet-sn"]])
def test_missing_losses(write, split, there):
    page = Page(write([make_run(split, loss, seed=4) for loss in there]))
    missing = [name for loss, name in LOSSES.items() if loss not in there]
    assert f"There is no finished run of {' and '.join(missing)}." in page.text
    assert len(page.all("img")) == 4 * 5 * len(there) + 2
    assert "Rankings are those of seed 4." in page.text
    if len(there) == 1:
        assert f"Only {LOSSES[there[0]]} was trained" in page.text
        assert "strong" not in {tag for tag, _ in page.tags}


@pytest.mark.parametrize("runs", [[], ["other"]])
def test_no_runs(split, tmp_path, runs):
    with pytest.raises(ValueError, match="`runs`: expected at least one run of triplet-hn, triplet-sn, bcls, got none"):
        write_report(tmp_path / "report.html", [make_run(split, loss) for loss in runs], split, SETTINGS, 1.0)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib(split, tmp_path, monkeypatch, nine):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError) as caught:
        write_report(tmp_path / "report.html", nine, split, SETTINGS, 1.0)
    assert str(caught.value) == 'drawing curves needs matplotlib: pip install "bcls[plots]"'
    assert list(tmp_path.iterdir()) == []


def test_curves_share_a_page(nine):
    plots = curve_svgs(nine)
    assert list(plots) == list(PLOTS)
    ids = re.findall(r' id="([^"]+)"', "".join(plots.values()))
    assert len(ids) == len(set(ids)) > 0
    for svg in plots.values():
        Page(svg)
        own = set(re.findall(r' id="([^"]+)"', svg))
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= own
        assert "currentColor" in svg
        for loss, name in LOSSES.items():
            assert f"var(--{loss}, {COLOURS[loss][0]})" in svg
            assert f">{name}</text>" in svg


def test_curves_leave_no_trace(nine):
    import matplotlib

    before = dict(matplotlib.rcParams)
    matplotlib.rcParams["font.size"] = 30
    try:
        loud = curve_svgs(nine)
        assert matplotlib.rcParams["font.size"] == 30
    finally:
        matplotlib.rcParams.update(before)
    assert loud == curve_svgs(nine)


def test_curves_of_one_epoch_and_of_undefined_values(split):
    run = make_run(split, "bcls")
    one = Run(**(vars(run) | {"epochs": [1], "train_loss": [1.0], "val_rsum": [5.0], "val_tau_true": [float("nan")]}))
    plots = curve_svgs([one])
    assert "BCLS" in plots["val_rsum"]
    assert "BCLS" not in plots["val_tau_true"]


def test_top_breaks_ties_towards_the_lower_index():
    scores = np.array([[0.5, 0.5, 0.9], [0.5, 0.7, 0.9], [0.6, 0.5, 0.1]], dtype=np.float32)
    assert top(scores, 0, 3, "i2t").tolist() == [2, 0, 1]
    assert top(scores, 0, 2, "t2i").tolist() == [2, 0]
    assert top(scores, 2, 9, "t2i").tolist() == [0, 1, 2]


@pytest.mark.parametrize(("direction", "count"), [("t2i", 4), ("i2t", 2)])
def test_picks_favour_no_loss(split, direction, count):
    noise = np.random.default_rng(0).normal(size=(2, *split.true.shape)).astype(np.float32)
    scores = {"triplet-sn": split.true + noise[0], "bcls": split.true + noise[1] * 0.1}
    picked = pick(scores, split, count, direction)
    assert len(set(picked)) == count
    swapped = {"triplet-sn": scores["bcls"], "bcls": scores["triplet-sn"]}
    assert pick(swapped, split, count, direction) == picked
    if direction == "t2i":
        assert len({int(split.image_of_caption[caption]) for caption in picked}) == count
        assert len({split.texts[caption] for caption in picked}) == count
