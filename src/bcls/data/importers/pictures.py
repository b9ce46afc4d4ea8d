"""Finds the picture file of each imported image."""

from collections.abc import Sequence
from pathlib import Path

from bcls._core.errors import fail
from bcls.data.image_files import match_names, open_store
from bcls.data.records import ImageRecord


def find_pictures(
    images: Sequence[ImageRecord], wanted: Sequence[Sequence[str]], place: str | Path | None
) -> tuple[tuple[ImageRecord, ...], tuple[Path, ...], tuple[str, ...]]:
    """Look up each image's file.

    Args:
        images: The images.
        wanted: Names that each image's file may have, the likeliest first.
        place: Folder, zip or tar with the files; ``None`` where there are none.

    Returns:
        The images with their files, the place as a tuple, and notes for the user.

    Raises:
        ValueError: None of the files is there.
    """
    if place is None:
        return tuple(images), (), ("no pictures: give --images to have them",)
    path = Path(place).resolve()
    available = open_store(path).names()
    files: list[str | None] = [None] * len(images)
    notes: list[str] = []
    for rank in range(max(map(len, wanted), default=0)):
        left = [index for index, names in enumerate(wanted) if files[index] is None and rank < len(names)]
        match = match_names([wanted[index][rank] for index in left], available)
        notes += match.notes
        taken = set(files)
        for index, file in zip(left, match.files, strict=True):
            files[index] = None if file in taken else file
    missing = [image.image_id for image, file in zip(images, files, strict=True) if file is None]
    if images and len(missing) == len(images):
        got = f"{len(available)} others" if available else "no picture at all"
        fail(
            "--images",
            f"files such as {wanted[0][0][:60]!r} in {path}",
            got,
            "point it to the folder or archive with them",
        )
    if missing:
        notes.append(f"{len(missing)} of {len(images)} images have no file in {path}, {missing[0]!r} the first of them")
    unused = len(available) - len({file for file in files if file is not None})
    if unused:
        notes.append(f"{unused} pictures in {path.name} have no captions and are left out")
    found = tuple(image._replace(file=file) for image, file in zip(images, files, strict=True))
    return found, (path,), tuple(notes)
