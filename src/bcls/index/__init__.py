"""An index of photos: their vectors and what is known about them, in a folder that survives a kill."""

from bcls.index.build import Report, build_index
from bcls.index.calibration import FITS, Calibration
from bcls.index.catalog import CaptionOf, Catalog, Photo
from bcls.index.engine import ENGINES, Engine, Found, IndexUnavailableError, Row, open_engine
from bcls.index.manifest import IndexManifest, read_index_manifest
from bcls.index.reader import Index, open_index
from bcls.index.settings import IndexSettings
from bcls.index.where import Where, where

__all__ = [
    "ENGINES",
    "FITS",
    "Calibration",
    "CaptionOf",
    "Catalog",
    "Engine",
    "Found",
    "Index",
    "IndexManifest",
    "IndexSettings",
    "IndexUnavailableError",
    "Photo",
    "Report",
    "Row",
    "Where",
    "build_index",
    "open_engine",
    "open_index",
    "read_index_manifest",
    "where",
]
