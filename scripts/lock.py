"""Write ``requirements.lock``, the pins of ``constraints.txt`` with hashes: ``python scripts/lock.py``.

Run it in an environment with the extra ``dev``, after a change of ``constraints.txt`` or of the extras. The packages
are those that the extra ``all`` needs here, then those that only ``dev`` needs. The hashes are those of all files that
the index has of a version. A wheel that is not on the index, such as the CPU build of torch, is named with ``--wheel``.
``scripts/setup.sh`` installs the file on the platform that it was made for.
"""

import argparse
import hashlib
import re
import sys
import tomllib
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
HEADER = """\
# Made by scripts/lock.py from constraints.txt: the packages of the extra `all`, then those that only `dev` needs, with
# the SHA-256 of the files of each version. For CPython 3.11 on Linux x86-64; elsewhere constraints.txt is used.
"""
#: The line of the file before the packages that only `dev` needs; scripts/setup.sh looks for it.
DEV = "# dev\n"


def pins(text: str) -> dict[str, str]:
    """Versions of a constraints or lock file by normalized name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def requirements(name: str, extra: str) -> list[str]:
    """Requirements of an installed package, or of this project as ``pyproject.toml`` has them."""
    if name != "bcls":
        return metadata.distribution(name).requires or []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: list[str] = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return found


def needed(extra: str) -> set[str]:
    """Packages that ``bcls[extra]`` needs in this environment, and the build backend; normalized names."""
    found: set[tuple[str, str]] = set()
    waiting = [("bcls", ""), ("bcls", extra), ("hatchling", "")]
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        found.add(package)
        for line in requirements(*package):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": package[1]}):
                waiting += [(canonicalize_name(requirement.name), one) for one in ("", *requirement.extras)]
    return {name for name, _ in found} - {"bcls"}


def version_of(file: str) -> Version | None:
    """The version in a file name, or None for other kinds of files."""
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except ValueError:
        return None


def hashes(index: str, name: str, version: str) -> list[str]:
    """SHA-256 of all files of a version on the index, sorted."""
    with urllib.request.urlopen(f"{index}/{name}/", timeout=120) as page:  # noqa: S310
        links = re.findall(r'href="[^"]*/([^/"#]+)#sha256=([0-9a-f]{64})"', page.read().decode())
    found = sorted({digest for file, digest in links if version_of(file) == Version(version)})
    if not found:
        raise SystemExit(f"lock: {index} has no file of {name} {version}; use a version that it has")
    return found


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", default="https://pypi.org/simple", help="package index, simple API with hashes")
    parser.add_argument("--wheel", type=Path, nargs="*", default=[], help="files that are not on the index")
    arguments = parser.parse_args()
    versions = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    base = needed("all")
    groups = [sorted(base), sorted(needed("dev") - base)]
    missing = [name for group in groups for name in group if name not in versions]
    if missing:
        raise SystemExit(f"lock: constraints.txt has no version of {', '.join(missing)}; add them")
    extra: dict[str, list[str]] = {}
    for wheel in arguments.wheel:
        name = str(parse_wheel_filename(wheel.name)[0])
        extra.setdefault(name, []).append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    with ThreadPoolExecutor(8) as pool:
        blocks = [
            list(pool.map(lambda name: hashes(arguments.index, name, versions[name]) + extra.get(name, []), group))
            for group in groups
        ]
    texts = []
    for group, digests in zip(groups, blocks, strict=True):
        lines = [
            " \\\n    ".join([f"{name}=={versions[name]}", *(f"--hash=sha256:{one}" for one in found)])
            for name, found in zip(group, digests, strict=True)
        ]
        texts.append("".join(f"{line}\n" for line in lines))
    LOCK.write_text(HEADER + texts[0] + DEV + texts[1], encoding="utf-8")
    print(f"{LOCK.name}: {len(groups[0])} packages, and {len(groups[1])} more for dev")
    return 0


if __name__ == "__main__":
    sys.exit(main())
