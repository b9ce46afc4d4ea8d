"""Report of the demo: content, charts, gallery, and sentences that follow from the metrics."""

import re
import sys

import numpy as np
import pytest

from bcls._core.extras import MissingExtraError
from bcls.data.dataset import open_dataset
from bcls.data.synthetic import make_scenes, true_relevance
from bcls.experiments.demo import write_scenes
from bcls.experiments.demo_report import COLORS, LOSSES, METRICS, DemoRun, RelevanceSplit, pick, write_report
from tests.reports.page_reader import charts_of, check_page_is_closed

SETTINGS = {"images": 100, "out <folder>": "a & b", "batch": 8}


def text_of(page):
    return check_page_is_closed(page, script=False).text().replace("\u00a0", " ")


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    scenes = make_scenes(12, seed=5)
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    write_scenes(folder, scenes, (0, 0, 12))
    true = true_relevance(scenes.scenes, scenes.captions)
    return RelevanceSplit(open_dataset(folder).split("test"), true * 0.5 + 0.25, true)


def make_run(split, loss, seed=0, tau=0.2, rsum=300.0, last=0.3):
    noise = np.random.default_rng([seed, len(loss)]).normal(size=split.true.shape)
    figures = {key: 40.0 + seed for key, _, _ in METRICS}
    return DemoRun(
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


def test_page_has_every_part(write, nine):
    page = check_page_is_closed(write(nine), script=False)
    text = page.text().replace("\u00a0", " ")
    assert page.all("html") == [{"lang": "en"}]
    assert "12 images and 60 captions" in text
    assert "over 3 seeds" in text
    assert "Everything took 1 min 15 s" in text
    for name in LOSSES.values():
        assert name in text
    assert "bcls demo --images 4000 --epochs 8" in text
    assert "loss(similarity, relevance, image_ids=ids)" in text


def test_page_is_small_and_has_no_script(write, nine):
    html = write(nine)
    check_page_is_closed(html, script=False)
    assert "<script" not in html
    assert len(html.encode()) < 1_500_000


def test_same_input_gives_same_bytes(write, nine):
    assert write(nine) == write(nine)


def test_captions_and_settings_are_escaped(split, tmp_path, nine):
    class Evil:
        texts = ["<script>alert('x')</script> & a dog"] * 60
        image_of_caption, image_ids = split.split.image_of_caption, split.split.image_ids
        read_image = split.split.read_image

    write_report(tmp_path / "report.html", nine, RelevanceSplit(Evil(), split.pseudo, split.true), SETTINGS, 1.0)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in html
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; a dog" in html
    assert "<script>alert('x')</script> & a dog" in text_of(html)
    assert "<dt>out &lt;folder&gt;</dt><dd>a &amp; b</dd>" in html


def test_digits_of_the_table(write, split):
    runs = [make_run(split, "bcls", seed, tau=0.25) for seed in (0, 2)] + [make_run(split, "triplet-sn", tau=0.2)]
    html = write(runs)
    assert "<td><strong>301.0 ± 1.4</strong></td>" in html
    assert "<td><strong>0.252 ± 0.003</strong></td>" in html
    assert "<td>0.200</td>" in html


def test_correct_and_wrong_results_are_marked(split, tmp_path):
    good, bad = make_run(split, "bcls"), make_run(split, "triplet-hn")
    good.similarity[:] = split.true
    good.similarity[split.split.image_of_caption, range(60)] = 2.0
    bad.similarity[:] = -split.true
    write_report(tmp_path / "report.html", [bad, good], split, SETTINGS, 1.0)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    # Four captions with one correct image each and two images with five correct captions each, with the better loss.
    assert html.count('<li class="truth"><img') == 4
    assert html.count('<li class="truth"><p>') == 10
    shown = re.findall(r'<li class="(\w+)">(?:<img|<p>).*?\[([\d.]+)\].*?true ([\d.]+)<', html)
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
def test_sentences_follow_from_the_metrics(write, split, tau, rsum, sentence):
    runs = [make_run(split, "triplet-sn"), make_run(split, "bcls", tau=tau, rsum=rsum)]
    text = text_of(write(runs))
    assert sentence in text
    assert "these differences may be due to chance" in text


def test_differences_within_the_spread_are_marked(write, split):
    near = [make_run(split, "triplet-sn", seed) for seed in (0, 1)]
    near += [make_run(split, "bcls", seed, tau=0.201, rsum=400.0) for seed in (0, 1)]
    text = text_of(write(near))
    assert "(τ true 0.202 ± 0.001 against 0.201 ± 0.001, within the spread of the seeds)" in text
    assert "33 % higher (400.5 ± 0.7 against 300.5 ± 0.7)." in text
    assert "chance" not in text


def test_stalled_runs_are_reported(write, split):
    runs = [make_run(split, "triplet-hn", seed, last=last) for seed, last in enumerate((0.401, 0.383, 0.25))]
    runs += [make_run(split, "bcls", seed) for seed in range(3)]
    assert "Triplet-HN stalled in 2 of 3 seeds: its training loss ended at 0.392" in text_of(write(runs))
    assert "stalled" not in write([make_run(split, "bcls", last=0.4), make_run(split, "triplet-hn", last=0.3)])


def test_without_matplotlib(split, tmp_path, monkeypatch, nine):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError) as caught:
        write_report(tmp_path / "report.html", nine, split, SETTINGS, 1.0)
    assert str(caught.value) == 'drawing charts needs matplotlib: pip install "bcls[reports]"'
    assert list(tmp_path.iterdir()) == []


def test_charts_show_the_mean_of_each_loss(write, nine):
    assert charts_of(check_page_is_closed(write(nine), script=False)) == [
        "Training loss by epoch. " + " ".join(f"{name}: 1 at 1, 0.3 at 3." for name in LOSSES.values()),
        "Validation RSUM by epoch. " + " ".join(f"{name}: 100 at 1, 300 at 3." for name in LOSSES.values()),
        "Validation τ true by epoch. " + " ".join(f"{name}: 0.1 at 1, 0.2 at 3." for name in LOSSES.values()),
    ]


def test_colors_of_charts_are_those_of_the_page(write, nine):
    html = write(nine)
    for loss, color in COLORS.items():
        assert f".{loss} {{ --loss: {color}; }}" in html


def test_charts_of_one_epoch_and_of_undefined_values(write, split):
    run = make_run(split, "bcls")
    values = {"epochs": [1], "train_loss": [1.0], "val_rsum": [5.0], "val_tau_true": [float("nan")]}
    charts = charts_of(check_page_is_closed(write([DemoRun(**(vars(run) | values))]), script=False))
    assert charts == ["Training loss by epoch. BCLS: 1 at 1.", "Validation RSUM by epoch. BCLS: 5 at 1."]


@pytest.mark.parametrize(("direction", "count"), [("t2i", 4), ("i2t", 2)])
def test_choice_of_queries_does_not_depend_on_the_order_of_losses(split, direction, count):
    noise = np.random.default_rng(0).normal(size=(2, *split.true.shape)).astype(np.float32)
    scores = {"triplet-sn": split.true + noise[0], "bcls": split.true + noise[1] * 0.1}
    picked = pick(scores, split, count, direction)
    assert len(set(picked)) == count
    swapped = {"triplet-sn": scores["bcls"], "bcls": scores["triplet-sn"]}
    assert pick(swapped, split, count, direction) == picked
    if direction == "t2i":
        assert len({int(split.split.image_of_caption[caption]) for caption in picked}) == count
        assert len({split.split.texts[caption] for caption in picked}) == count
