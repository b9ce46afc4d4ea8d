"""Random views of a picture beside the whole of it, the same ones in every extraction."""

import hashlib
from dataclasses import dataclass

from PIL import Image

from bcls.data.images import random_view


@dataclass(frozen=True)
class RandomViews:
    """How each picture is looked at: as a whole first, then in random parts.

    A view depends on the picture's id and on its own number, and on nothing else: neither on the order of the work, nor
    on who does it, nor on how many views there are.

    Attributes:
        number: Random views of a picture.
        smallest: Share of the area of the smallest part.

    Example:
        >>> [view.size for view in RandomViews(2, 0.5).of(Image.new("RGB", (80, 60)), "dog")]
        [(80, 60), (57, 59), (57, 48)]
    """

    number: int
    smallest: float

    @property
    def rows(self) -> int:
        """Views of a picture, the whole one included."""
        return 1 + self.number

    def of(self, picture: Image.Image, image_id: str) -> list[Image.Image]:
        """The picture as it is, and its random views in order."""
        start = int.from_bytes(hashlib.sha256(image_id.encode()).digest()[:8], "little")
        return [picture, *(random_view(picture, (start, view), self.smallest) for view in range(1, self.rows))]
