"""Every example is one short file, and a test of the same name runs it."""

import ast

import pytest

from tests.examples.conftest import EXAMPLES

FILES = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_is_one_short_file(file):
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 100
    assert ast.get_docstring(ast.parse(text))


def test_every_example_that_runs_has_a_test():
    runs = {file.stem for file in FILES if "def main(" in file.read_text(encoding="utf-8")}
    tested = {file.stem.removeprefix("test_") for file in EXAMPLES.parent.glob("tests/examples/test_*.py")}
    assert len(runs) == 7
    assert runs <= tested
