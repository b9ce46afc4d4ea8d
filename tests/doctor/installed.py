"""A description of an installed package, as pip leaves it, for tests of what reads such descriptions."""

import base64
import hashlib


def describe_install(folder, version="0.1.0.dev0", requires=(), files=()):
    """Write ``bcls-VERSION.dist-info`` with requirements, and a record of the hashes of ``files``."""
    about = folder / f"bcls-{version}.dist-info"
    about.mkdir()
    lines = ["Metadata-Version: 2.4", "Name: bcls", f"Version: {version}"]
    (about / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]) + "\n")
    rows = []
    for name, content in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        rows.append(f"{name},sha256={digest},{len(content)}\n")
    (about / "RECORD").write_text("".join(rows))
    return folder
