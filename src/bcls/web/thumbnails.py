"""Photos in small, as files, the last ones remembered."""

import io
import threading
from collections import OrderedDict

from bcls.search.service import Service

#: Longer sides that may be asked for: one for grids, one for a photo by itself.
SMALL, LARGE = 320, 1280
#: Bytes of thumbnails that are remembered.
KEPT = 64 * 2**20
#: Pictures that are unpacked at once; each may take hundreds of megabytes.
_AT_ONCE = 2


class Thumbnails:
    """Makes thumbnails and keeps the last ones in memory; threads may share it.

    Args:
        service: Where the photos come from.
        size: Bytes that may be kept.
    """

    def __init__(self, service: Service, size: int = KEPT) -> None:
        self._service, self._size = service, size
        self._lock = threading.Lock()
        self._turn = threading.BoundedSemaphore(_AT_ONCE)
        self._files: OrderedDict[tuple[int, str, int], bytes] = OrderedDict()
        self._kept = 0

    def jpeg(self, number: int, side: int) -> bytes:
        """A photo as a JPEG file, its longer side at most ``side`` pixels.

        Raises:
            ValueError: There is no such photo, or it cannot be unpacked.
            OSError: Its file is gone.
        """
        # The hash is in the key, so that a photo that was replaced is not shown as it was.
        key = (number, self._service.photo(number).facts.sha256, side)
        with self._lock:
            if key in self._files:
                self._files.move_to_end(key)
                return self._files[key]
        with self._turn:
            buffer = io.BytesIO()
            self._service.thumbnail(number, side).save(buffer, "JPEG", quality=82, optimize=False)
        content = buffer.getvalue()
        with self._lock:
            if key not in self._files:
                self._files[key] = content
                self._kept += len(content)
            while self._kept > self._size:
                self._kept -= len(self._files.popitem(last=False)[1])
        return content
