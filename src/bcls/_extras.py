"""Optional dependencies: imported where they are used, and one line that says what to install when one is missing."""

import importlib
from types import ModuleType


class MissingExtraError(ImportError):
    """An optional dependency is not installed; the message says what it is for and how to get it."""


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency.

    Args:
        module: Name of the module, dots allowed.
        extra: The extra of this package that brings it.
        purpose: What it is for, the beginning of a sentence such as ``"reading captions with MiniLM"``.

    Returns:
        The module.

    Raises:
        MissingExtraError: If it is not installed. An error inside an installed module is passed on as it is.

    Example:
        >>> require("json", "text", "reading JSON").loads("[1]")
        [1]
        >>> require("no_such_module", "text", "reading captions with MiniLM")
        Traceback (most recent call last):
        ...
        bcls._extras.MissingExtraError: reading captions with MiniLM needs no_such_module: pip install "bcls[text]"
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but misses something of its own is broken, and another install of it is no help.
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        message = f'{purpose} needs {module}: pip install "bcls[{extra}]"'
        raise MissingExtraError(message, name=error.name) from error
