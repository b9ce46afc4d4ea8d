"""Pictures where they lie: folders, zip and tar files, decoded with care."""

from bcls.data.images.decode import FORMATS, MAX_PIXELS, decode
from bcls.data.images.match import Match, match_names
from bcls.data.images.random_view import random_view
from bcls.data.images.store import ImageStore, open_store

__all__ = ["FORMATS", "MAX_PIXELS", "ImageStore", "Match", "decode", "match_names", "open_store", "random_view"]
