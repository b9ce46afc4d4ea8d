"""What must be true of a tree before it is released: ``python scripts/release_check.py [TAG]``.

The version is written in one place, ``src/bcls/__init__.py``. CITATION.cff and, for a release, CHANGELOG.md and the tag
must agree with it. Exits with 1 and a line for each thing that does not.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


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


def main() -> int:
    """Print what does not agree."""
    found = problems(ROOT, sys.argv[1] if len(sys.argv) > 1 else None)
    print("\n".join(f"release: {line}" for line in found) or f"release: {version_in(ROOT)} is in order")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
