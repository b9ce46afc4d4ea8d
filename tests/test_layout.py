"""The layout of the code: package order, import cycles, file lengths, and what importing a module loads."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
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


def name_of(path):
    return ".".join(("bcls", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES}


@cache
def imported(path):
    """Modules of this package that a file imports, function-level and type-checking imports included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            while name and name not in MODULES:
                name = name.rpartition(".")[0]
            if name and name != "bcls":
                found.append(name)
    return found


def package_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_order_of_packages(path):
    package = package_of(path)
    if package in {"__init__", "__main__"}:
        return
    for name in imported(path):
        target = name.split(".")[1]
        if not target.startswith("__"):
            assert ORDER.index(target) <= ORDER.index(package), f"{package} must not import {name}"


def test_every_package_is_in_the_order():
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == set(ORDER)


def test_modules_have_no_import_cycles():
    graph = {name: set(imported(path)) - {name} for name, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_private_modules_are_imported_within_their_package(path):
    for name in imported(path):
        parts = name.split(".")
        if any(part.startswith("_") for part in parts[2:]):
            assert parts[1] == package_of(path), f"{path} imports {name}"


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "scripts", "docs"])
def test_files_have_at_most_600_lines(folder):
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert lengths
    assert {path: length for path, length in lengths.items() if length > 600} == {}


COMMANDS = sorted(f"bcls.cli.{path.stem}" for path in (SOURCE / "cli").glob("*.py") if path.stem != "__init__")
LIGHT = ["bcls", "bcls.experiments", "bcls.features", "bcls.models", "bcls.training", "bcls.search", "bcls.labels"]


def test_imports_are_light():
    """What ``--help`` imports includes neither torch nor anything that takes as long."""
    heavy = ["torch", "transformers", "sentence_transformers", "matplotlib", "scipy", "sklearn", "accelerate"]
    modules = [*COMMANDS, *LIGHT, "bcls.evaluation", "bcls.data.synthetic"]
    # One process: each module is light by itself if all of them together are.
    code = f"""
import importlib, sys
for module in {modules}:
    importlib.import_module(module)
    found = sorted(set({heavy}) & set(sys.modules))
    assert not found, f"{{module}} imports {{found}}"
print("light")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "light", run.stderr


def test_version_is_the_same_in_the_citation_file():
    import bcls

    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {bcls.__version__}" in citation
