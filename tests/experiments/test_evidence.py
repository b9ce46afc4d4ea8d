import json

import pytest

from bcls.experiments.claims import INCONCLUSIVE, NOT, PARTLY, check_claims
from bcls.experiments.summary import summarize
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


def test_every_claim_that_is_not_held_has_a_remark():
    claims = check_claims([summarize(path.parent) for path in sorted(KEPT.glob("*/sweep.json"))])
    remarks = json.loads(REMARKS.read_text(encoding="utf-8"))
    assert set(remarks) <= {one.claim for one in claims}
    assert {one.claim for one in claims if one.verdict in {PARTLY, NOT, INCONCLUSIVE}} <= set(remarks)
