"""A bill of materials of what is installed, as CycloneDX JSON, and a check of the installed files against it.

``python scripts/sbom.py sbom.json`` writes it; ``python scripts/sbom.py --check sbom.json`` compares every file with
the hash that its package recorded, and every package with the bill. A package's hash is that of the list of its files
with their hashes, without what depends on where it is installed.
"""

import argparse
import base64
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from bcls import __version__
from bcls._core.files import write_whole
from bcls.cli.doctor import Recorded, recorded

#: Written by the installer, and different from machine to machine.
_LOCAL = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}


def bill(names: Iterable[str] | None = None) -> dict[str, Any]:
    """The bill of materials.

    Args:
        names: Distributions; all that are installed when left out.
    """
    found = [metadata.distribution(name) for name in names] if names is not None else list(metadata.distributions())
    parts = {_name(one): _component(one) for one in found}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "library", "name": "bcls", "version": __version__}},
        "components": [parts[name] for name in sorted(parts)],
    }


def differences(kept: dict[str, Any]) -> Iterator[str]:
    """What is not as the bill says, a line each: missing, other versions, other hashes, files that were changed."""
    for part in kept["components"]:
        try:
            found = metadata.distribution(part["name"])
        except metadata.PackageNotFoundError:
            yield f"{part['name']} {part['version']}: not installed"
            continue
        now = _component(found)
        if now["version"] != part["version"]:
            yield f"{part['name']}: {part['version']} in the bill, {now['version']} installed"
        elif now.get("hashes") != part.get("hashes"):
            yield f"{part['name']} {part['version']}: another package of the same version"
        yield from (f"{part['name']}: {file} was changed after it was installed" for file in _changed(found))


def _component(found: metadata.Distribution) -> dict[str, Any]:
    name, version = _name(found), found.version
    part: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    licence = found.metadata.get("License-Expression") or found.metadata.get("License") or ""
    if licence and len(licence) < 80 and "\n" not in licence:
        part["licenses"] = [{"license": {"name": licence}}]
    lines = sorted(f"{file.path} {file.mode}={file.value}" for file in _files(found))
    if lines:
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        part["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return part


def _changed(found: metadata.Distribution) -> Iterator[str]:
    for file in _files(found):
        path = Path(str(found.locate_file(file.path)))
        if not path.is_file():
            yield f"{file.path} (gone)"
            continue
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, file.mode).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.value:
            yield str(file.path)


def _files(found: metadata.Distribution) -> list[Recorded]:
    """Files of a package that have a hash and are the same on every machine."""
    return [
        file
        for file in recorded(found)
        if ".." not in file.path.parts and file.path.name not in _LOCAL and file.path.suffix != ".pyc"
    ]


def _name(found: metadata.Distribution) -> str:
    return found.metadata["Name"].lower().replace("_", "-").replace(".", "-")


def main() -> int:
    """Write the bill, or check against it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="compare what is installed with the file")
    given = parser.parse_args()
    if not given.check:
        write_whole(given.file, json.dumps(bill(), indent=1) + "\n")
        return 0
    lines = list(differences(json.loads(given.file.read_text(encoding="utf-8"))))
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
