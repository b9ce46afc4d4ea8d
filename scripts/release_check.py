"""What must be true of a release: ``python scripts/release_check.py [TAG]`` for a tree, ``--dist DIR`` for built files.

The version is written in one place, ``src/bcls/__init__.py``. CITATION.cff and, for a release, CHANGELOG.md and the tag
must agree with it. Built files have a size limit, and no weight file is in them twice. Exits with 1 and a line for each
problem.
"""

import hashlib
import re
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Largest wheel and sdist in bytes. A file on PyPI may have 100 MB.
LARGEST = {".whl": 90_000_000, ".gz": 95_000_000}
#: Endings of files with weights; other files, such as tokenizers, may be equal.
WEIGHTS = (".safetensors", ".onnx")


def version_in(root: Path) -> str:
    """The version, read without importing the package."""
    found = re.search(r'^__version__ = "([^"]+)"$', (root / "src/bcls/__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("release: src/bcls/__init__.py has no line __version__ = ...")
    return found[1]


def problems(root: Path, tag: str | None = None) -> list[str]:
    """What does not agree, one line each."""
    version = version_in(root)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    found = []
    if "version" in project["project"] or "version" not in project["project"]["dynamic"]:
        found.append("pyproject.toml: the version must be dynamic, it is written in src/bcls/__init__.py")
    if not re.search(rf"^version: {re.escape(version)}$", citation, re.MULTILINE):
        found.append(f"CITATION.cff: expected 'version: {version}'")
    if "## [Unreleased]" not in changelog:
        found.append("CHANGELOG.md: expected a section '## [Unreleased]'")
    released = re.fullmatch(r"\d+\.\d+\.\d+", version) is not None
    if released and not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md: expected a section '## [{version}] - YYYY-MM-DD'")
    if released and not re.search(r"^date-released: \d{4}-\d\d-\d\d$", citation, re.MULTILINE):
        found.append("CITATION.cff: expected 'date-released: YYYY-MM-DD' for a release")
    if tag is not None and tag != f"v{version}":
        found.append(f"the tag is {tag}, the version {version}: expected v{version}")
    return found


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
        return
    with tarfile.open(path) as sdist:
        for member in sdist:
            if file := sdist.extractfile(member):
                yield member.name, file.read()


def file_problems(folder: Path) -> list[str]:
    """Built files that are too large, and weight files that a built file has twice."""
    found = []
    for path in sorted(one for one in folder.iterdir() if one.suffix in LARGEST):
        if path.stat().st_size >= LARGEST[path.suffix]:
            size, most = path.stat().st_size / 1e6, LARGEST[path.suffix] / 1e6
            found.append(f"{path.name}: {size:.1f} MB, expected less than {most:.0f} MB; remove a file or weights")
        first: dict[str, str] = {}
        for name, content in _members(path):
            other = first.setdefault(hashlib.sha256(content).hexdigest(), name)
            if name.endswith(WEIGHTS) and other != name:
                found.append(f"{path.name}: {other} and {name} are the same file; keep one")
    return found


def main() -> int:
    """Print what is wrong."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--dist"]:
        found = file_problems(Path(arguments[1]))
        good = ", ".join(
            f"{path.name} {path.stat().st_size / 1e6:.1f} MB"
            for path in sorted(Path(arguments[1]).iterdir())
            if path.suffix in LARGEST
        )
    else:
        found = problems(ROOT, arguments[0] if arguments else None)
        good = f"{version_in(ROOT)} is in order"
    print("\n".join(f"release: {line}" for line in found or [good]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
