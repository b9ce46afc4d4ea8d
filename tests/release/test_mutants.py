"""The tool for mutation testing: which changes it makes, and that it tells those that tests notice from the others."""

import ast
import subprocess
import sys

import pytest

from scripts import mutants
from scripts.mutants_changes import changes
from tests.losses.factories import KERNEL_TESTS


def made(code):
    return {(change.before, change.after) for change in changes(code)}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("a < b", {("a < b", "a <= b"), ("a < b", "a > b")}),
        ("a is None", {("a is None", "a is not None")}),
        ("a + b", {("a + b", "a - b")}),
        ("a and b", {("a and b", "a or b")}),
        ("not a", {("not a", "a")}),
        ("x = 3", {("3", "4")}),
        ("x = 0.5", {("0.5", "1.0")}),
        ("x = 0.0", {("0.0", "1.0")}),
        ("x = True", {("True", "False")}),
        ("x = 'text'", set()),
        ("f(a, b)", {("f(a, b)", "f(b, a)"), ("f(a, b)", "pass")}),
        ("x = min(a, b)", set()),
        ("x = y.clamp()", {("y.clamp()", "y")}),
        ("x += y", {("x += y", "x -= y")}),
        ("def f():\n    return a", {("return a", "return None")}),
        ("fail('x', 3, f'{a + b}')", {("fail('x', 3, f'{a + b}')", "pass")}),
        ("def f(x: A | B) -> C | D: ...", set()),
        ("zip(a, b, strict=True)[0] == c", None),
    ],
)
def test_changes(code, expected):
    found = made(code)
    if expected is None:
        assert ("True", "False") not in found
    else:
        assert found == expected


def test_each_change_is_one_change():
    code = "def f(a, b=2):\n    if a > b:\n        return a * 2\n    return g(a, b)\n"
    sources = [change.source(code) for change in changes(code)]
    assert len(sources) == len(set(sources)) == 9
    assert ast.unparse(ast.parse(code)) not in sources
    assert "def f(a, b=2):\n    if a > b:\n        return a / 2\n    return g(a, b)" in sources


def test_a_sample_does_not_move():
    names = [f"change {number}" for number in range(50)]
    sample = mutants.sample(names, 10, seed=1)
    assert len(sample) == 10
    assert set(mutants.sample([*names, "another"], 10, seed=1)) - {"another"} <= set(sample)
    assert sample != mutants.sample(names, 10, seed=2)


def test_every_module_has_tests():
    found = mutants.all_changes()
    assert all(mutants.mirrored(path) for path in {path for path, _, _ in found.values()})


def test_tests_of_kernels_are_left_out():
    files = {file.name for file in mutants.mirrored(mutants.ROOT / "src/bcls/losses/kendall.py")}
    assert "test_against_reference.py" in files
    assert files.isdisjoint({*KERNEL_TESTS, "test_interpreter.py"})


def test_what_is_listed_as_equivalent_is_still_there():
    assert mutants.known_equivalent(mutants.all_changes())


def test_counts():
    outcome = {"a/x.py f: 1": "killed", "a/x.py f: 2": "timeout", "a/x.py f: 3": "survived", "a/y.py f: 4": "survived"}
    result = mutants.summary(outcome, seed=1, total=9, equivalent={"a/y.py f: 4"})
    assert (result["killed"], result["timeout"], result["survived"], result["equivalent"]) == (1, 1, 1, 1)
    assert result["killed_percent"] == 66.7
    assert result["modules"] == {"a/x": {"killed": 1, "survived": 1, "timeout": 1}, "a/y": {"equivalent": 1}}
    assert result["survivors"] == ["a/x.py f: 3"]


@pytest.mark.slow
def test_a_change_that_matters_and_one_that_does_not():
    names = [
        "evaluation/inputs.py module: 16 -> 17",
        "evaluation/hubness.py _occurrence_metrics: occurrence - occurrence.mean() -> occurrence + occurrence.mean()",
    ]
    # In a process of its own: this one has the package loaded, and so would its forks.
    code = f"from scripts import mutants as m; print(list(m.try_changes(m.all_changes(), {names}, limit=60)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=mutants.ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['survived', 'killed']"
