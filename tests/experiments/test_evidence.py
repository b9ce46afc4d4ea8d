import json

import pytest

from bcls.experiments.claims import INCONCLUSIVE, NOT, PARTLY, check_claims
from bcls.experiments.results import read_results, summarize
from bcls.experiments.sweep_file import merge
from scripts.evidence_page import KEPT, REMARKS, keep
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
