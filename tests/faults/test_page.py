"""The page in the documentation is what the records say, and the records are of this suite."""

import ast
import json
from pathlib import Path

from scripts.faults_page import PAGE, RECORDS, page


def test_the_page_is_the_generators():
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(RECORDS.read_text(encoding="utf-8")))


def test_the_records_name_every_fault_of_the_suite():
    suite = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "tried":
                suite.add(ast.literal_eval(node.args[0]))
    assert {row["fault"] for row in json.loads(RECORDS.read_text(encoding="utf-8"))} == suite
