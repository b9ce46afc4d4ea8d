"""Files that appear complete or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file under a temporary name, make sure that it is on the disk, then give it its name.

    Args:
        path: Where; the folder must exist.
        content: Bytes, or text that is written as UTF-8.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
