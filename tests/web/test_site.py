"""The thumbnail cache."""

import io

from PIL import Image

from bcls.search.service import Service
from bcls.web.site import ThumbnailCache


def test_thumbnails_are_cached_up_to_a_size(folders):
    with Service(folders / "index") as service:
        read = []
        real = service.thumbnail
        service.thumbnail = lambda number, side: read.append(number) or real(number, side)
        kept = ThumbnailCache(service, 2)
        for number in (1, 1, 2, 1, 3, 1, 2):  # 3 pushes 2 out, which was used longest ago
            kept.jpeg(number, 320)
        assert read == [1, 2, 3, 2]
        nothing = ThumbnailCache(service, 0)
        read.clear()
        assert nothing.jpeg(1, 320) == nothing.jpeg(1, 320)
        assert read == [1, 1]
        with Image.open(io.BytesIO(kept.jpeg(1, 16))) as image:
            assert image.size == (16, 16)
