"""The data flow is the folder list: who may import whom, how long files are, what start-up may cost."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bcls"

#: What each package may import of ours, beside itself and the small helpers.
ALLOWED = {
    "data": set(),
    "backbones": {"data"},
    "features": {"data", "backbones", "jobs"},
    "jobs": {"data"},
    "labels": {"data", "jobs"},
    "similarity": set(),
    "models": {"data", "backbones", "similarity"},
    "losses": {"kernels"},
    "kernels": set(),
    "training": {"data", "labels", "models", "losses", "evaluation", "similarity"},
    "export": {"data", "models"},
    "index": {"data", "models"},
    "search": {"data", "index", "labels", "models"},
    "experiments": {"assess", "data", "evaluation", "jobs", "labels", "losses", "models", "similarity", "training"},
    "web": {"data", "index", "labels", "search", "training"},
    "evaluation": set(),
    "assess": {"data", "labels", "evaluation", "models"},
    "demo": {"data", "labels", "losses", "evaluation", "models", "training"},
    "bench": {"kernels", "losses"},
    "doctor": {"backbones", "data", "demo", "index", "kernels", "labels", "losses", "models", "search"},
    "cli": {
        "assess",
        "bench",
        "data",
        "demo",
        "doctor",
        "evaluation",
        "experiments",
        "export",
        "features",
        "index",
        "labels",
        "losses",
        "models",
        "search",
        "training",
        "web",
    },
}
#: Small helpers that know nothing of images, captions or losses.
HELPERS = {"_checks", "_device", "_extras", "_files", "_padded", "_page", "_plots", "_progress", "_weights", "_yaml"}
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
    for name, _ in imported(path):
        parts = name.split(".")
        if parts[0] != "bcls" or len(parts) == 1:
            continue
        target = parts[1]
        if target in HELPERS or target == package or target.startswith("__"):
            continue
        if package in HELPERS:
            pytest.fail(f"{path.name} is a helper and must not import {name}")
        if package in {"__init__", "__main__"}:
            assert target == "cli", f"{path.name} imports {name}"
            continue
        assert target in ALLOWED[package], f"{package} must not import {name}"


def test_every_package_has_its_place():
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages <= set(ALLOWED)


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
    assert {path: length for path, length in lengths.items() if length > 400} == {}


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
        "bcls.cli.features",
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
        "bcls.doctor",
        "bcls.features",
        "bcls.jobs",
        "bcls.models",
        "bcls.training",
        "bcls.index",
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
