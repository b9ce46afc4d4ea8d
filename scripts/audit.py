"""Check the installed packages: ``python scripts/audit.py``.

Runs ``pip-audit`` if it is installed and its database can be reached. Otherwise compares every installed file with the
hash in the RECORD of its package, and lists files that are missing or were changed.
"""

import base64
import csv
import hashlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

#: Written by the installer.
_LOCAL = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
_DATABASE = "https://pypi.org/pypi/pip/24.0/json"


def changed_files(distribution: metadata.Distribution) -> Iterator[str]:
    """Files of an installed package that are missing or do not have the recorded hash."""
    # `Distribution.files` omits missing files from Python 3.12 on.
    for name, recorded, *_ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        path = Path(name)
        algorithm, _, expected = recorded.partition("=")
        if not expected or ".." in path.parts or path.name in _LOCAL or path.suffix == ".pyc":
            continue
        installed = Path(str(distribution.locate_file(name)))
        if not installed.is_file():
            yield f"{name} is missing"
            continue
        with installed.open("rb") as file:
            digest = hashlib.file_digest(file, algorithm).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != expected:
            yield f"{name} was changed after installation"


def _has_database() -> bool:
    try:
        with urllib.request.urlopen(_DATABASE, timeout=10) as answer:
            return b"vulnerabilities" in answer.read()
    except OSError:
        return False


def main() -> int:
    """Run the audit; the exit code is 1 if there are findings."""
    if find_spec("pip_audit") and _has_database():
        command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner", "off"]
        return subprocess.run(command, check=False).returncode  # noqa: S603
    print("audit: pip-audit or its database is not available; comparing installed files with their recorded hashes")
    found = [f"{one.metadata['Name']}: {line}" for one in metadata.distributions() for line in changed_files(one)]
    print("\n".join(found) or "audit: every installed file has its recorded hash", file=sys.stderr if found else None)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
