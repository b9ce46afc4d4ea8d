import json
from pathlib import Path

import pytest

from bcls.experiments.claims import paper_metrics, read_paper

FILE = Path(__file__).parents[2] / "results" / "paper.json"
RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10")


@pytest.fixture(scope="module")
def tables():
    return read_paper(FILE)


def test_paper_has_nine_tables(tables):
    counts = {number: len(table["rows"]) for number, table in tables.items()}
    assert counts == {"I": 5, "II": 5, "III": 6, "IV": 12, "V": 7, "VI": 4, "VII": 4, "VIII": 4, "IX": 4}


def test_metrics_of_single_rows(tables):
    assert paper_metrics(tables, "II", "S-BERT", "CxC") == {"pearson": 0.877}
    assert paper_metrics(tables, "VIII", "BCLS", "Flickr30K")["rsum"] == 415.6
    assert paper_metrics(tables, "VI", "VSE++ + BCLS", "MS-COCO 5K")["tau"] == pytest.approx((0.417 + 0.406) / 2)
    assert paper_metrics(tables, "VII", "CVSE++", "MS-COCO 5K")["eccv_r1_t2i"] == 75.0
    assert paper_metrics(tables, "III", "SGRAF* + BCLS", "MS-COCO 5K") == {
        f"fold_{key}": value for key, value in tables["III"]["rows"][5]["MS-COCO 1K"].items()
    }
    assert "i2t_r5" not in paper_metrics(tables, "IV", "SAF", "MS-COCO 5K")  # a dash in the paper


def test_recalls_add_up_to_rsum_within_rounding(tables):
    for table in tables.values():
        for row in table["rows"]:
            for values in row.values():
                if isinstance(values, dict) and values.get("rsum") is not None:
                    assert sum(values[key] for key in RECALLS) == pytest.approx(values["rsum"], abs=0.11)


def test_unknown_rows_and_other_files_are_errors(tables, tmp_path):
    with pytest.raises(ValueError, match="a row of Table IX: L_T-HN"):
        paper_metrics(tables, "IX", "SGR", None)
    with pytest.raises(ValueError, match="`paper`: expected one of 'I'"):
        paper_metrics(tables, "X", "SGR", None)
    (tmp_path / "x.json").write_text(json.dumps([1]), encoding="utf-8")
    with pytest.raises(ValueError, match="--paper"):
        read_paper(tmp_path / "x.json")
