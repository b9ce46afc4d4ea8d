"""Finds and reads the picture of each image, wherever the manifest says pictures are."""

from pathlib import Path
from typing import Any

from bcls._checks import fail
from bcls.data.images import ImageStore, match_names, open_store
from bcls.data.images._lock import ForkLock
from bcls.data.records import ImageRecord


class Library:
    """Picture files of a dataset. Stores are opened when first needed; threads may share it.

    Args:
        paths: The folders and archives, in the order that ``source`` of an image counts.
        images: All images. Those without a ``file`` are looked up by their id.
        moved: Where they are now, if they have moved; see :func:`places`.
    """

    def __init__(
        self, paths: tuple[Path, ...], images: tuple[ImageRecord, ...], moved: str | Path | None = None
    ) -> None:
        self._state = paths, images, moved
        self._paths = paths if moved is None else places(paths, Path(moved))
        self._lock = ForkLock()
        self._stores: dict[int, ImageStore] = {}
        self._found: dict[int, dict[str, str | None]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Library, self._state

    def read(self, image: ImageRecord) -> bytes:
        """Bytes of an image's file."""
        return self._store(image.source).read(self.file_of(image))

    def file_of(self, image: ImageRecord) -> str:
        """Name of an image's file in its store."""
        if image.file is not None:
            return image.file
        store = self._store(image.source)
        with self._lock:
            if image.source not in self._found:
                # Together with the images that have a file, so that none of theirs is taken.
                here = [one for one in self._state[1] if one.source == image.source]
                match = match_names([one.file or one.image_id for one in here], store.names())
                found = zip(here, match.files, strict=True)
                self._found[image.source] = {one.image_id: file for one, file in found if one.file is None}
            file = self._found[image.source][image.image_id]
        if file is None:
            raise FileNotFoundError(2, f"no file for image {image.image_id!r}", str(store.path))
        return file

    def _store(self, source: int) -> ImageStore:
        with self._lock:
            if source not in self._stores:
                if source >= len(self._paths):
                    expected = "a folder, zip or tar of images" if not self._paths else f"source {source} of the images"
                    fail(
                        "manifest.json",
                        expected,
                        "none",
                        "import the dataset with --images, or open it with images=...",
                    )
                try:
                    self._stores[source] = open_store(self._paths[source])
                except FileNotFoundError as error:
                    hint = "the images are gone; if they moved, open the dataset with images=..."
                    raise FileNotFoundError(2, hint, error.filename) from error
            return self._stores[source]


def places(paths: tuple[Path, ...], moved: Path) -> tuple[Path, ...]:
    """Where folders and archives are now that were at ``paths``.

    Args:
        paths: Where they were.
        moved: The folder that the archives now lie in, or else one place that holds all of their pictures.
    """
    if any((moved / path.name).is_file() for path in paths):
        return tuple(moved / path.name for path in paths)
    return (moved,) * max(1, len(paths))
