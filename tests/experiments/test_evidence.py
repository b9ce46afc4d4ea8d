import json
import re
from functools import cache

import numpy as np
import pytest

from bcls.data import open_dataset
from bcls.evaluation.scores import load_similarity
from bcls.experiments import SweepSettings, run_sweep
from bcls.experiments.claims import INCONCLUSIVE, NOT, PARTLY, check_claims
from bcls.experiments.results import read_results, summarize
from bcls.experiments.sweep_file import merge
from scripts import gallery_page
from scripts.evidence_page import KEPT, REMARKS, keep, searched_vsepp
from tests.experiments.factories import data, write
from tests.experiments.sweep_factory import line, ranks, sweep


def test_kept_results_have_metrics_and_ranks_but_no_paths(tmp_path):
    command = "bcls sweep configs/a.yaml --data /home/me/flickr8k --out /home/me/out --final"
    folder = sweep(tmp_path / "made", [line("bcls", 1, 1.0, command=command, test={"rsum": 2.0})])
    key = json.loads((folder / "results.jsonl").read_text(encoding="utf-8"))["key"]
    ranks(folder, key, 0, kind="test")
    ranks(folder, key, 0, kind="validation")
    kept = keep(folder, tmp_path / "kept")
    assert kept == tmp_path / "kept" / "made"
    assert [path.name for path in (kept / "ranks").iterdir()] == [f"{key}-test.npz"]
    (written,) = (json.loads(row) for row in (kept / "results.jsonl").read_text(encoding="utf-8").splitlines())
    assert written["command"] == "bcls sweep a.yaml --data flickr8k --out out --final"
    assert written["validation"]["rsum"] == 1.0
    (kept / "ranks" / "0123456789ab-test.npz").write_bytes(b"of a run that is no longer in the sweep")
    keep(folder, tmp_path / "kept")
    assert [path.name for path in (kept / "ranks").iterdir()] == [f"{key}-test.npz"]
    with pytest.raises(SystemExit, match="the copy of it"):
        keep(kept, tmp_path / "kept")
    assert [path.name for path in (kept / "ranks").iterdir()] == [f"{key}-test.npz"]


#: Rows of old results that are not the best trial of their search, and the setting that was best.
NOT_CHOSEN = {("dual-first", "Sigmoid"): {"lr": 0.001, "model.dropout_images": 0.3}}  # the table has dropout 0.5
SEARCHES = [path.parent for path in sorted(KEPT.glob("*/sweep.json")) if "search" in json.loads(path.read_text())]


@pytest.mark.parametrize("folder", SEARCHES, ids=lambda folder: folder.name)
def test_rows_of_a_table_are_those_that_the_search_chose(folder):
    metadata, lines = read_results(folder)
    search = metadata["search"]
    assert set(search["chosen"]) == {line["row"] for line in lines if not line["ensemble"]}
    for row, chosen in search["chosen"].items():
        scores = {}
        for one in (one for one in lines if one["row"] == row and one["phase"] == "trial"):
            score = float("-inf") if "failed" in one else one.get("trial", one["validation"])[search["measure"]]
            scores.setdefault(json.dumps(one["point"]), []).append(score)
        assert len(scores) == search["tried"][row]
        best = json.loads(max(scores, key=lambda point: sum(scores[point]) / len(scores[point])))
        assert best == NOT_CHOSEN.get((folder.name, row), chosen)
        runs = [one["settings"] for one in lines if one["row"] == row and one["phase"] == "run"]
        assert runs
        for settings in runs:
            assert merge(settings, chosen) == settings, f"{row} was trained with other settings than those chosen"


def test_every_claim_that_is_not_held_has_a_remark():
    claims = check_claims([summarize(path.parent) for path in sorted(KEPT.glob("*/sweep.json"))])
    remarks = json.loads(REMARKS.read_text(encoding="utf-8"))
    assert set(remarks) <= {one.claim for one in claims}
    assert {one.claim for one in claims if one.verdict in {PARTLY, NOT, INCONCLUSIVE}} <= set(remarks)


#: Numbers in the remarks: the words around each, `#` for the number itself, and where it comes from: sweep,
#: configuration or the size of the difference of two, and metric. The number of digits is that of the text.
NUMBERS = [
    ("After one epoch RSUM is # for", "convergence", "Triplet-HN", "first"),
    ("for Triplet-HN and # for Triplet-SN;", "convergence", "Triplet-SN", "first"),
    ("at the end Triplet-HN is # points ahead", "convergence", "Triplet-HN - Triplet-SN", "rsum"),
    ("both differences are positive, # and", "vsepp-first", "BCLS - Triplet-SN", "rsum"),
    ("are positive, 7 and # points;", "vsepp-first", "Triplet-SN - Triplet-HN", "rsum"),
    ("`lse: mean` BCLS is # points above Triplet-SN and", "tuned", "BCLS (mean) - Triplet-SN (mean)", "rsum"),
    ("Triplet-SN and Triplet-SN # above", "tuned", "Triplet-SN (mean) - Triplet-HN", "rsum"),
    ("(table `dual`), BCLS is # points below", "dual", "BCLS - Triplet-SN", "rsum"),
    ("with other settings, BCLS was # points above", "dual-first", "BCLS (mean) - Triplet-SN", "rsum"),
    ("(tables `saf`, `sgr`) BCLS is # and", "saf", "BCLS - Triplet-SN", "rsum"),
    ("`sgr`) BCLS is 1 and # points below", "sgr", "BCLS - Triplet-SN", "rsum"),
    ("Triplet-HN is # points below Triplet-SN on SAF", "saf", "Triplet-SN - Triplet-HN", "rsum"),
    ("so its # is the result", "sgr", "Triplet-HN", "rsum"),
    ("The difference of # points is inconclusive", "sgr", "Triplet-SN - Triplet-HN", "rsum"),
    ("reaches an RSUM of #,", "vsepp-first", "K-SW-HS", "rsum"),
    ("by # points of RSUM and", "dual", "BCLS - T-SN + dense Kendall", "rsum"),
    ("points of RSUM and # of tau", "dual", "BCLS - T-SN + dense Kendall", "tau"),
    ("BCLS is within # of the tau of the dense", "vsepp-first", "BCLS (mean) - T-SN + dense Kendall", "tau"),
    ("rises by # without noise", "noise", "noise 0, alpha 0.4 - noise 0, alpha 0", "rsum"),
    ("by # with noise of 0.1", "noise", "noise 0.1, alpha 0.4 - noise 0.1, alpha 0", "rsum"),
    ("by # with noise of 0.2", "noise", "noise 0.2, alpha 0.4 - noise 0.2, alpha 0", "rsum"),
    ("BCLS is # points above Ladder and", "dual", "BCLS - Ladder", "rsum"),
    ("above Ladder and # points below SAM", "dual", "BCLS - SAM (soft)", "rsum"),
    ("BCLS is # points above and", "saf", "BCLS - SAM (soft)", "rsum"),
    ("points above and # below it", "sgr", "BCLS - SAM (soft)", "rsum"),
    ("On frozen encoders BCLS is # points of RSUM below", "paper-exact", "dual BCLS - dual Triplet-HN", "rsum"),
    ("agrees better with experts, # against", "paper-exact", "dual BCLS", "experts"),
    ("with experts, 0.508 against #.", "paper-exact", "dual Triplet-HN", "experts"),
    ("On VSE++ BCLS is # points of RSUM below", "paper-exact", "VSE++ BCLS - VSE++ Triplet-HN", "rsum"),
    ("Tau is higher with BCLS, # against", "paper-exact", "VSE++ BCLS", "tau"),
    ("with BCLS, 0.353 against #,", "paper-exact", "VSE++ Triplet-HN", "tau"),
    ("the agreement with experts, # against", "paper-exact", "VSE++ BCLS", "experts"),
    ("with experts, 0.476 against #.", "paper-exact", "VSE++ Triplet-HN", "experts"),
    ("its RSUM of # on VSE++ and", "paper-exact", "VSE++ K-SW-HS", "rsum"),
    ("and of # on frozen encoders is that of the second epoch", "paper-exact", "dual K-SW-HS", "rsum"),
    ("ListMLE has #, LambdaLoss", "dual", "T-SN + ListMLE", "tau"),
    ("LambdaLoss # and BCLS", "dual", "T-SN + LambdaLoss", "tau"),
    ("and BCLS #, against at most", "dual", "BCLS", "tau"),
    ("against at most # for the losses of the paper", "dual", "Ladder", "tau"),
    ("above the # of this configuration", "vsepp-first", "BCLS", "tau"),
    ("`lse: mean` leads by #,", "vsepp-first", "BCLS (mean) - Triplet-SN (mean)", "tau"),
    ("tau than BCLS (# and", "saf", "CSA", "tau"),
    ("tau than BCLS (0.370 and # against", "sgr", "CSA", "tau"),
    ("and 0.436 against # and", "saf", "BCLS", "tau"),
    ("against 0.275 and #, two", "sgr", "BCLS", "tau"),
    ("the tau-b of BCLS is # (WordLlama)", "dual", "BCLS", "wordllama_tau_b"),
    ("(WordLlama) and # (CIDEr)", "dual", "BCLS", "cider_tau_b"),
    ("that of ListMLE # and", "dual", "T-SN + ListMLE", "wordllama_tau_b"),
    ("ListMLE 0.356 and #,", "dual", "T-SN + ListMLE", "cider_tau_b"),
    ("that of LambdaLoss # and", "dual", "T-SN + LambdaLoss", "wordllama_tau_b"),
    ("LambdaLoss 0.351 and #,", "dual", "T-SN + LambdaLoss", "cider_tau_b"),
    ("that of Triplet-SN # and", "dual", "Triplet-SN", "wordllama_tau_b"),
    ("that of Triplet-SN 0.253 and #.", "dual", "Triplet-SN", "cider_tau_b"),
    ("slightly better than BCLS, #:", "dual", "BCLS", "experts"),
    ("LambdaLoss with # and", "dual", "T-SN + LambdaLoss", "experts"),
    ("ListMLE with #.", "dual", "T-SN + ListMLE", "experts"),
    ("of the paper BCLS is # and 0.04", "saf", "BCLS - Triplet-SN", "experts"),
    ("BCLS is 0.03 and # above Triplet-SN", "sgr", "BCLS - Triplet-SN", "experts"),
    ("is higher there: # and", "saf", "CSA", "experts"),
    ("is higher there: 0.513 and # against", "sgr", "CSA", "experts"),
    ("0.527 against # and", "saf", "BCLS", "experts"),
    ("against 0.486 and # of BCLS", "sgr", "BCLS", "experts"),
    ("with an RSUM of # and 346 against", "saf", "CSA", "rsum"),
    ("RSUM of 348 and # against", "sgr", "CSA", "rsum"),
    ("348 and 346 against # and", "saf", "BCLS", "rsum"),
    ("against 346 and #.", "sgr", "BCLS", "rsum"),
]
#: Other numbers of the remarks: settings, widths of intervals, single seeds, the paper, and results that were replaced.
OTHER = {"0.026", "0.011", "0.247", "0.331", "0.329", "12 points", "10 points", "0.161", "0.13", "0.11"}
BY_HAND = re.compile(r"\d+\.\d\d+|\d+ points")


@cache
def stored(sweep):
    return {one.name: one for one in summarize(KEPT / sweep).rows}


def number_of(sweep, row, metric):
    def mean(one):
        if metric == "first":
            return one.history[0]["rsum"]
        return one.metrics["report_expert_tau_c" if metric == "experts" else metric].mean

    first, *second = (mean(stored(sweep)[name]) for name in row.split(" - "))
    return abs(first - second[0]) if second else first


def written(text):
    """The one place in the remarks with these words around a number."""
    remarks = "\n".join(json.loads(REMARKS.read_text(encoding="utf-8")).values())
    (found,) = re.finditer(re.escape(text).replace(r"\#", r"(\d+(?:\.\d+)?)"), remarks)
    return found


@pytest.mark.parametrize(("text", "sweep", "row", "metric"), NUMBERS)
def test_numbers_in_the_remarks_are_those_of_the_results(text, sweep, row, metric):
    number = written(text)[1]
    digits = len(number.partition(".")[2])
    assert number == f"{number_of(sweep, row, metric):.{digits}f}"


def test_every_number_in_the_remarks_is_checked():
    checked = {written(text).start(1) for text, *_ in NUMBERS}
    remarks = written(NUMBERS[0][0]).string
    assert {found[0] for found in BY_HAND.finditer(remarks) if found.start() not in checked} <= OTHER


def test_validation_metrics_of_the_equal_search_on_vsepp():
    lines = [json.loads(one) for one in (KEPT / "vsepp-trials.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in {one["row"] for one in lines}:
        own = [one for one in lines if one["row"] == row]
        trials, runs = ([one for one in own if one["phase"] == phase] for phase in ("trial", "run"))
        assert (len(trials), sorted(one["seed"] for one in runs)) == (8, [1, 2, 3])
        best = max(trials, key=lambda one: one["validation"]["rsum"])
        assert all(merge(one["settings"], best["point"]) == one["settings"] for one in runs)
        assert not any("test" in one for one in trials + runs)
        assert {one["settings"]["lr"] for one in runs} == {max(one["settings"]["lr"] for one in lines)}
    found = searched_vsepp()
    for text, row in (
        ("validation RSUM on VSE++ is #", "K-SW-HS"),
        ("validation RSUM is # there", "SAM"),
        ("that of BCLS # and", "BCLS"),
        ("and that of Ladder #.", "Ladder"),
    ):
        assert written(text)[1] == f"{found[row]['rsum']:.0f}"


def test_searches_seeds_and_epochs_are_as_described_on_the_page():
    """The sentences of scripts/evidence_page.py about them are written by hand."""
    for name, trials, seeds, epochs in (("dual", 8, 5, 15), ("both-search", 4, 3, 12)):
        metadata, lines = read_results(KEPT / name)
        assert set(metadata["search"]["tried"].values()) == {trials}
        assert metadata["search"]["epochs"] == 6
        assert {len(row.keys) for row in stored(name).values()} == {seeds}
        assert {line["settings"]["epochs"] for line in lines if line["phase"] == "run"} == {epochs}
    assert {line["settings"]["model"]["width"] for line in read_results(KEPT / "both-search")[1]} == {512}
    for name, seeds in (("saf", {2, 3}), ("sgr", {2, 3}), ("sgraf", {2}), ("words", {1}), ("record", {1})):
        assert {len(row.keys) for row in stored(name).values()} == seeds
    metadata, lines = read_results(KEPT / "record")
    assert set(metadata["rows"]) - set(stored("record")) == {"vectors", "all nine"}
    found = {line["row"]: line["settings"]["epochs"] for line in lines if not line["ensemble"]}
    epochs = {loss: [found[f"{model} {loss}"] for model in ("SAF", "SGR", "pixels")] for loss in ("BCLS", "Triplet-SN")}
    assert epochs == {"BCLS": [8, 8, 8], "Triplet-SN": [4, 4, 6]}
    tuned = read_results(KEPT / "tuned")[0]["search"]["tried"]
    assert tuned["BCLS"] + tuned["BCLS (mean)"] == 8
    assert {tuned[row] for row in ("Triplet-SN (mean)", "Triplet-HN", "InfoNCE")} == {4}
    (wide,) = {json.dumps(line["settings"]) for line in read_results(KEPT / "both")[1] if "wide" in line["row"]}
    assert {"width": 1024, "dropout_images": 0.6}.items() <= json.loads(wide)["model"].items()
    assert json.loads(wide)["lr"] == 3e-3


def test_the_gallery_is_made_from_the_stored_results():
    stored = json.loads(gallery_page.STORED.read_text(encoding="utf-8"))
    assert gallery_page.render(stored) == gallery_page.PAGE.read_text(encoding="utf-8")
    for query in stored["queries"]:
        for rank, results in zip(query["ranks"], query["results"], strict=True):
            first = next((place for place, one in enumerate(results, start=1) if one["match"]), None)
            assert first == rank if rank <= gallery_page.SHOWN else first is None
            assert all(one["label"] == 1.0 for one in results if one["match"])


def test_a_gallery_has_the_best_results_of_each_run(tmp_path):
    out, runs = tmp_path / "out", {"HN": {"loss": {"name": "triplet-hn"}}, "BCLS": {}}
    folder = data(tmp_path / "data")
    run_sweep(write(tmp_path / "a.yaml", runs=runs), SweepSettings(str(folder), str(out), device="cpu"))
    stored = gallery_page.collect(out, ["HN", "BCLS"], folder, "wordllama")
    split, keys = open_dataset(folder).split("test"), {row.name: row.keys[min(row.keys)] for row in summarize(out).rows}
    scores = [load_similarity([str(out / "runs" / keys[name])], split) for name in ("HN", "BCLS")]
    captions, images = [one.caption_id for one in split.captions], list(split.image_ids)
    owner = split.image_of_caption
    directions = [query["direction"] for query in stored["queries"]]
    assert [directions.count(one) for one in ("i2t", "t2i")] == [gallery_page.RANDOM + gallery_page.DIFFERENT] * 2
    for query in stored["queries"]:
        for matrix, rank, results in zip(scores, query["ranks"], query["results"], strict=True):
            if query["direction"] == "i2t":
                row, names = matrix[images.index(query["query"])], captions
                own = owner == images.index(query["query"])
            else:
                row, names = matrix[:, captions.index(query["query"])], images
                own = np.arange(len(images)) == owner[captions.index(query["query"])]
            best = np.argsort(-row, kind="stable")
            assert [one["id"] for one in results] == [names[place] for place in best[: gallery_page.SHOWN]]
            assert [one["match"] for one in results] == own[best[: gallery_page.SHOWN]].tolist()
            assert rank == 1 + int(np.argmax(own[best]))
