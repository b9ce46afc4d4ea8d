"""Import order: two functions of the package have the names of their modules."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["kendall", "hubness"])
@pytest.mark.parametrize("order", ["package first", "module first"])
def test_the_name_is_the_function_in_either_order_of_imports(name, order):
    imports = ["import bcls.evaluation", f"import bcls.evaluation.{name}"]
    lines = imports if order == "package first" else imports[::-1]
    code = "\n".join([*lines, f"print(callable(bcls.evaluation.{name}))"])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True"
