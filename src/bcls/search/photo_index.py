"""``PhotoIndex``: build, update and search an index of photos from Python."""

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePath
from typing import Any

from PIL import Image

from bcls._core.errors import check_choice, fail
from bcls.data.image_files import check_size
from bcls.search.build import IndexReport, IndexSettings, build_index
from bcls.search.engine import SearchFilter
from bcls.search.index import ModelInput
from bcls.search.service import DUPLICATE, Hit, PhotoInfo, Service, ServiceSettings


class PhotoIndex(AbstractContextManager["PhotoIndex"]):
    """An index of photos that is searched by text or by image.

    Threads may search at the same time. ``with`` closes the index; so does :meth:`close`.

    Args:
        folder: Folder of an index, from :meth:`build` or ``bcls index``.
        model: The model of the index, or its name or folder; by default the one the index was built with.
        settings: Limits of the query service.

    Attributes:
        folder: Folder of the index.
        service: The query service, for captions and thumbnails.

    Raises:
        ValueError: The folder is not a complete index, or was built with another model.

    Example:
        >>> index = PhotoIndex.build("photos", "index")  # doctest: +SKIP
        >>> for hit in index.search("a dog on the beach", k=5):  # doctest: +SKIP
        ...     print(hit.path, hit.score)
        >>> index.search("dog + beach - person", sort="date")  # doctest: +SKIP
        >>> index.search("at night", image=Path("beach.jpg"))  # doctest: +SKIP
        >>> index.similar("2023/a.jpg"), index.duplicates()  # doctest: +SKIP
        >>> index.update().added  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path, model: ModelInput = None, settings: ServiceSettings | None = None) -> None:
        self.folder = Path(folder)
        self.service = Service(self.folder, model, settings)

    @classmethod
    def build(
        cls, photos: str | Path | Sequence[str | Path], out: str | Path, model: ModelInput = None, **options: Any
    ) -> "PhotoIndex":
        """Build an index of photos, or update the one in ``out``, and open it.

        Args:
            photos: A folder, zip, tar or dataset, or several of them.
            out: Folder of the index.
            model: A model, or the name or folder of one; by default that of the index, or ``photo`` for a new index.
            **options: Other fields of :class:`bcls.search.IndexSettings`, such as ``device="cuda"``.

        Returns:
            The open index.

        Raises:
            ValueError: An option is invalid, there are no photos, or ``out`` contains something else.
            OSError: Photos are missing, or the disk is full or read-only.
        """
        if model is None or isinstance(model, str | Path):
            build_index(photos, _settings(out, None if model is None else str(model), options))
        else:
            build_index(photos, _settings(out, type(model).__name__, options), model=model)
        return cls(out, model)

    def update(self, **options: Any) -> IndexReport:
        """Add, update and remove photos that changed since the last run; the next search uses the new state.

        Args:
            **options: Fields of :class:`bcls.search.IndexSettings`, such as ``workers=2``.

        Returns:
            What was done.
        """
        manifest = self.service.index.manifest
        settings = _settings(self.folder, manifest.model, {"features": manifest.features, **options})
        return build_index(manifest.photos, settings, model=self.service.model)

    def search(
        self,
        query: str | Path | Image.Image,
        k: int = 10,
        filters: SearchFilter | None = None,
        *,
        image: Path | Image.Image | None = None,
        sort: str = "score",
    ) -> list[Hit]:
        """Find photos.

        Args:
            query: A text, the path of an image file (a ``Path``), or a PIL image. A text may have operators and
                weights, such as ``"dog + 0.5 beach - person"``; see :func:`bcls.search.parse_query`.
            k: Number of results.
            filters: Conditions on the results; see :func:`bcls.search.parse_filter`.
            image: An image that is combined with a text.
            sort: ``"score"``, best first, or ``"date"``: the newest of those that fit.

        Returns:
            The photos. ``hit.fits`` states whether one is relevant.

        Raises:
            ValueError: The query is empty, too long or not an image, or ``k`` is not between 1 and 1000.
            FileNotFoundError: The image file does not exist.
        """
        text, given = (query, image) if isinstance(query, str) else (None, query)
        if text is None and image is not None:
            fail("image", "a text with it", "two images", "search with one image")
        if isinstance(given, Path):
            check_size("query", given.name, given.stat().st_size)
        content = given.read_bytes() if isinstance(given, Path) else given
        return list(self.service.search(text, k, filters, image=content, sort=sort).hits)

    def similar(
        self, photo: str | PurePath, k: int = 10, filters: SearchFilter | None = None, *, sort: str = "score"
    ) -> list[Hit]:
        """Find photos that are similar to one of the index, without that one.

        Args:
            photo: Name of the photo below the indexed folder, as in ``hit.name``.
            k: Number of results.
            filters: Conditions on the results.
            sort: As in :meth:`search`.

        Raises:
            ValueError: The index has no such photo.
        """
        name = photo.as_posix() if isinstance(photo, PurePath) else photo
        number = self.service.number_of(name)
        if number is None:
            fail("photo", "the name of a photo in the index", repr(name), "names are relative to the indexed folder")
        return list(self.service.more_like(number, k, filters, sort=sort).hits)

    def duplicates(self, threshold: float = DUPLICATE) -> list[tuple[PhotoInfo, ...]]:
        """Find groups of photos that are nearly the same; see :meth:`bcls.search.Service.duplicates`."""
        return self.service.duplicates(threshold)

    def __len__(self) -> int:
        """Number of photos."""
        return self.service.index.catalog.count()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the service and close the files."""
        self.service.close()


def _settings(out: str | Path, model: str | None, options: dict[str, Any]) -> IndexSettings:
    known = [field.name for field in dataclasses.fields(IndexSettings) if field.name not in {"out", "model", "json"}]
    for name in options:
        check_choice(name, name, known, "an option of IndexSettings")
    return IndexSettings(out=str(out), model=model, **options)
