import json

import numpy as np
import pytest

from bcls.data import open_dataset
from bcls.evaluation.scores import load_similarity
from bcls.experiments import SweepSettings, run_sweep
from bcls.experiments.claims import INCONCLUSIVE, NOT, PARTLY, check_claims
from bcls.experiments.results import read_results, summarize
from bcls.experiments.sweep_file import merge
from scripts import gallery_page
from scripts.evidence_page import KEPT, REMARKS, keep
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
