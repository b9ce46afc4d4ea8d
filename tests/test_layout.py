"""The data flow is the folder list: who may import whom, how long files are, what start-up may cost."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bcls"

#: A package imports only packages above it in this list.
ORDER = [
    "_core",
    "losses",
    "reports",
    "data",
    "features",
    "labels",
    "models",
    "evaluation",
    "training",
    "experiments",
    "search",
    "web",
    "cli",
]
FILES = sorted(SOURCE.rglob("*.py"))


def imported(path):
    """Modules of ours that a file imports, with whether the import is at the top."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module] if node.module != "bcls" else [f"bcls.{alias.name}" for alias in node.names]
        for name in names:
            yield name, node in tree.body


def package_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_data_flow(path):
    package = package_of(path)
    if package in {"__init__", "__main__"}:
        return
    for name, _ in imported(path):
        parts = name.split(".")
        if parts[0] == "bcls" and len(parts) > 1 and not parts[1].startswith("__"):
            assert ORDER.index(parts[1]) <= ORDER.index(package), f"{package} must not import {name}"


def test_every_package_is_in_the_list():
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_private_modules_stay_private(path):
    """``_name`` modules of a package are imported by that package alone."""
    for name, _ in imported(path):
        parts = name.split(".")
        if parts[0] == "bcls" and any(part.startswith("_") for part in parts[2:]):
            assert parts[1] == package_of(path), f"{path} imports {name}"


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "scripts", "docs"])
def test_files_are_short(folder):
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert lengths
    assert {path: length for path, length in lengths.items() if length > 600} == {}


@pytest.mark.parametrize(
    "module",
    [
        "bcls",
        "bcls.cli.main",
        "bcls.cli.arguments",
        "bcls.cli.demo",
        "bcls.cli.evaluate",
        "bcls.cli.compare",
        "bcls.cli.data",
        "bcls.cli.labels",
        "bcls.cli.train",
        "bcls.cli.index",
        "bcls.cli.search",
        "bcls.cli.serve",
        "bcls.cli.sweep",
        "bcls.cli.report",
        "bcls.experiments",
        "bcls.cli.export",
        "bcls.cli.bench",
        "bcls.cli.doctor",
        "bcls.cli.completion",
        "bcls.features",
        "bcls.models",
        "bcls.training",
        "bcls.search",
        "bcls.labels",
        "bcls.evaluation",
        "bcls.data.synthetic",
    ],
)
def test_start_up_is_light(module):
    """What `--help` loads brings neither torch nor anything that takes as long."""
    heavy = "{'torch', 'transformers', 'sentence_transformers', 'matplotlib', 'scipy', 'sklearn', 'accelerate'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_version_is_told_once():
    import bcls

    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {bcls.__version__}" in citation
