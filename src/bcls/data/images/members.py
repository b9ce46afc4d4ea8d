"""Names of pictures inside folders and archives, and which of them are refused."""

import os
from pathlib import PurePosixPath

from bcls._checks import fail

#: Endings of files that are taken for pictures.
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
#: A picture file of more bytes than this is refused unread.
MAX_BYTES = 256 * 2**20


def is_picture(name: str) -> bool:
    """Whether a name is that of a picture, going by its ending; the files macOS adds to archives are not.

    Example:
        >>> is_picture("photos/a.JPG"), is_picture("captions.txt"), is_picture("__MACOSX/photos/._a.jpg")
        (True, False, False)
    """
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith("._") and "__MACOSX" not in path.parts


def check_member(where: str, name: str) -> str:
    r"""Refuse names that lead out of their folder.

    Args:
        where: The folder or archive, for the message.
        name: Name of a member.

    Returns:
        The name.

    Raises:
        ValueError: It is absolute, has a drive letter, ``..`` or a NUL character in it, or is no text.

    Example:
        >>> check_member("a.zip", "../../etc/passwd")
        Traceback (most recent call last):
        ...
        ValueError: `a.zip`: expected names inside the archive, got '../../etc/passwd'; do not trust this source
    """
    parts = name.replace("\\", "/").split("/")
    if not name or name[0] in "/\\" or ".." in parts or parts[0].endswith(":") or "\0" in name:
        fail(where, "names inside the archive", repr(name), "do not trust this source")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # JSON can hold half of a surrogate pair; files have no such names
        fail(where, "names of files", repr(name), "mend the name")
    return name


def check_size(where: str, name: str, size: int) -> None:
    """Refuse a picture whose file is absurdly large.

    Raises:
        ValueError: ``size`` is above :data:`MAX_BYTES`.
    """
    if size > MAX_BYTES:
        fail(f"{where}: {name}", f"a picture of at most {MAX_BYTES} bytes", size, "shrink it or leave it out")
