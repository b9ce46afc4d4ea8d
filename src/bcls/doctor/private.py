"""Takes out of a text what says who and where somebody is."""

import getpass
import platform
import re

# A whole path with at least one folder in it; the last part is what a reader needs. Dates, shares such as 3/4 and
# addresses on the web are no paths.
_UNIX = re.compile(r"(?<![\w.:/~-])~?/(?:[^/\n'\"`,;:()<>|]*/)+([^\s/'\"`,;:()<>|]*)")
_WINDOWS = re.compile(r"(?<!\w)[A-Za-z]:\\(?:[^\\\n'\"`,;:()<>|]*\\)*([^\s\\'\"`,;:()<>|]*)")
#: Names that say nothing about a person or a machine, but occur in other words' places.
_COMMON = {"", "root", "user", "admin", "runner", "localhost", "bcls", "python", "torch", "linux", "ubuntu"}


def without_places(text: str) -> str:
    """Replace folders by ``...``, and the names of the user and of the machine.

    Example:
        >>> without_places("expected /home/ada/.venv/lib/model.safetensors, got no such file")
        'expected .../model.safetensors, got no such file'
        >>> without_places("3/4 of 2.1 GB, see https://example.org/a/b")
        '3/4 of 2.1 GB, see https://example.org/a/b'
    """
    text = _WINDOWS.sub(r"...\\\1", _UNIX.sub(r".../\1", text))
    for name, instead in ((_user(), "USER"), (platform.node(), "HOST"), (platform.node().split(".")[0], "HOST")):
        if name.lower() not in _COMMON:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", instead, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        return ""
