import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["bcls.labels", "bcls.evaluation"])
def test_importing_stays_light(package):
    heavy = {"torch", "transformers", "sentence_transformers"}
    code = f"import sys, {package}; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
