"""The page in the documentation matches the records, and the records match the tests."""

import ast
import json
from pathlib import Path

from scripts.faults_page import INDEX, PAGE, RECORDS, TRAINING, current_page


def test_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == current_page()


def test_random_kills_lost_nothing():
    training, index = (json.loads(path.read_text(encoding="utf-8")) for path in (TRAINING, INDEX))
    assert training["kills"] >= 100
    assert training["resumed from a checkpoint"] >= 0.8 * training["kills"]
    assert training["different"] == 0
    assert index["kills"] >= 1000
    assert index["lost"] == 0


def test_records_contain_every_fault():
    suite = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "tried":
                suite.add(ast.literal_eval(node.args[0]))
    assert {row["fault"] for row in json.loads(RECORDS.read_text(encoding="utf-8"))} == suite
