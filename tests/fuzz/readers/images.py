"""Image files of every supported format, EXIF data, and images sent to the web app."""

import io

from PIL import Image
from starlette.exceptions import HTTPException

from bcls.data.images import decode
from bcls.search.source import read_exif
from bcls.web.api import decode_upload
from tests.data.factories import image_bytes
from tests.fuzz.engine import Reader

#: Small, so that a header that lies is refused long before memory runs out.
_MOST = 1_000_000


def pictures():
    exif = Image.Exif()
    exif[0x0112], exif[0x0132] = 6, "2024:05:17 18:30:00"
    exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 51.0, 24.0), 3: "E", 4: (2.0, 21.0, 3.0)})
    made = [image_bytes(size=(16, 12), file_format=kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")]
    made += [
        image_bytes(size=(16, 12), file_format="JPEG", exif=exif),
        image_bytes(size=(16, 12), file_format="PNG", exif=exif),
    ]
    made += [
        image_bytes(size=(16, 12), file_format="TIFF", compression=one)
        for one in ("tiff_lzw", "jpeg", "tiff_adobe_deflate")
    ]
    made += [image_bytes(size=(16, 12), file_format="PNG", mode=mode) for mode in ("P", "1", "L", "RGBA", "I;16")]
    made.append(image_bytes(size=(16, 12), file_format="JPEG", mode="CMYK", progressive=True))
    frames = io.BytesIO()
    first, *rest = (Image.new("RGB", (9, 9), colour) for colour in ("red", "green", "blue"))
    first.save(frames, "GIF", save_all=True, append_images=rest)
    return [*made, frames.getvalue()]


def read(content, folder):
    read_exif(content)
    decode(content, "a.jpg", max_pixels=_MOST).load()


def sent(content, folder):
    """Read an image as the web app does: errors have a client status, never 500."""
    try:
        decode_upload(content, _MOST)
    except HTTPException as error:
        if error.status_code not in {413, 415}:
            raise AssertionError(f"status {error.status_code}") from error


READERS = (Reader("pictures", pictures, read), Reader("web pictures", pictures, sent))
