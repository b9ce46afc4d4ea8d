"""What a camera noted in a photo: when and where."""

import io
import math
from datetime import UTC, datetime
from typing import Any, NamedTuple

from PIL import ExifTags, Image

from bcls.data.images import FORMATS

_DATES = (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTimeDigitized, ExifTags.Base.DateTime)


class Notes(NamedTuple):
    """When (seconds since 1970) and where (degrees) a photo was taken, as far as it says.

    A camera's clock has no time zone, so its date is taken as UTC.
    """

    date: float | None = None
    latitude: float | None = None
    longitude: float | None = None


def read_notes(content: bytes) -> Notes:
    """Read the EXIF notes of a picture file; damaged ones are as good as none.

    Example:
        >>> read_notes(b"no picture")
        Notes(date=None, latitude=None, longitude=None)
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            exif = image.getexif()
            if not exif:
                return Notes()
            inner, gps = dict(exif.get_ifd(ExifTags.IFD.Exif)), dict(exif.get_ifd(ExifTags.IFD.GPSInfo))
    except Exception:  # noqa: BLE001, RUF100 - Pillow's readers raise what they like; the photo itself is judged later
        return Notes()
    date = next((found for tag in _DATES if (found := _date(inner.get(tag, exif.get(tag)))) is not None), None)
    latitude = _degrees(gps.get(ExifTags.GPS.GPSLatitude), gps.get(ExifTags.GPS.GPSLatitudeRef), 90)
    longitude = _degrees(gps.get(ExifTags.GPS.GPSLongitude), gps.get(ExifTags.GPS.GPSLongitudeRef), 180)
    if latitude is None or longitude is None:
        latitude = longitude = None
    return Notes(date, latitude, longitude)


def _date(value: Any) -> float | None:
    try:
        return datetime.strptime(str(value).strip("\0 ")[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def _degrees(parts: Any, side: Any, most: float) -> float | None:
    try:
        degrees, minutes, seconds = (float(part) for part in parts)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    value = degrees + minutes / 60 + seconds / 3600
    if not math.isfinite(value) or not 0 <= value <= most:
        return None
    return -value if str(side).strip("\0 ").upper() in {"S", "W"} else value
