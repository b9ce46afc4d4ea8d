"""Small copies of the photos, inside the page."""

import base64
import io
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bcls.data import Dataset

#: Longest side of a small copy, in pixels.
SIDE = 160
_QUALITY = 80


class Pictures:
    """Small copies of the photos of a split, made when asked for; those that cannot be read are remembered.

    Args:
        split: Images and captions.
    """

    def __init__(self, split: "Dataset") -> None:
        self._split = split
        self._made: dict[int, str | None] = {}
        self._first = dict(zip(split.image_of_caption[::-1].tolist(), split.texts[::-1], strict=True))

    def html(self, image: int) -> str:
        """Return the photo as an element, described by its first caption; its id where there is no photo."""
        if image not in self._made:
            self._made[image] = self._make(image)
        return self._made[image] or f'<span class="no-photo">{escape(self._split.image_ids[image])}</span>'

    def note(self) -> str:
        """Say which photos are missing, of those asked for so far; nothing where all are there."""
        missing = [self._split.image_ids[image] for image, made in self._made.items() if made is None]
        if not missing:
            return ""
        if len(missing) == len(self._made):
            return "No photo of this dataset could be read, so that images are shown by their ids."
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        return f"{len(missing)} of {len(self._made)} photos could not be read and are shown by their ids: {shown}."

    def _make(self, image: int) -> str | None:
        image_id = self._split.image_ids[image]
        try:
            picture = self._split.read_image(image_id)
        except (OSError, ValueError):  # what is wrong with single photos is for `bcls data check` to say
            return None
        picture.thumbnail((SIDE, SIDE))
        encoded = io.BytesIO()
        picture.save(encoded, format="JPEG", quality=_QUALITY, optimize=True)
        data = base64.b64encode(encoded.getvalue()).decode()
        width, height = picture.size
        return (
            f'<img src="data:image/jpeg;base64,{data}" alt="{escape(self._first.get(image, image_id))}" '
            f'title="{escape(image_id)}" width="{width}" height="{height}">'
        )
