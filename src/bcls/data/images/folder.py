"""Pictures as files in a folder and the folders below it."""

import os
from pathlib import Path
from typing import NoReturn

from bcls.data.images.members import check_member, check_size, is_picture


class FolderStore:
    """Pictures in a folder; names are paths below it, with forward slashes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> tuple[str, ...]:
        """Names of the pictures, sorted; links to folders are not followed.

        Raises:
            OSError: A folder cannot be listed: its pictures are not gone, and must not be taken for it.
        """
        found = []
        for folder, folders, files in os.walk(self.path, onerror=_stop, followlinks=False):
            folders[:] = [one for one in folders if not one.startswith(".")]
            base = Path(folder).relative_to(self.path)
            found += [(base / file).as_posix() for file in files if is_picture(file)]
        return tuple(sorted(found))

    def read(self, name: str) -> bytes:
        """Bytes of one picture file."""
        file = self.path / check_member(str(self.path), name)
        check_size(str(self.path), name, file.stat().st_size)
        return file.read_bytes()


def _stop(error: OSError) -> NoReturn:
    raise error
