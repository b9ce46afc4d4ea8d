"""An index of photos: their vectors and what is known about them, in a folder that survives a kill.

Search in an index of photos: by text, by picture, for captions, for more of the same.
"""

from bcls.search.batcher import OverloadedError
from bcls.search.build import Report, build_index
from bcls.search.calibration import FITS, Calibration
from bcls.search.catalog import CaptionOf, Catalog, Photo
from bcls.search.engine import ENGINES, Engine, Found, IndexUnavailableError, Row, Where, open_engine, where
from bcls.search.index import Index, IndexManifest, IndexSettings, open_index, read_index_manifest
from bcls.search.service import Answer, CaptionAnswer, CaptionHit, Hit, Service, ServiceSettings

__all__ = [
    "ENGINES",
    "FITS",
    "Answer",
    "Calibration",
    "CaptionAnswer",
    "CaptionHit",
    "CaptionOf",
    "Catalog",
    "Engine",
    "Found",
    "Hit",
    "Index",
    "IndexManifest",
    "IndexSettings",
    "IndexUnavailableError",
    "OverloadedError",
    "Photo",
    "Report",
    "Row",
    "Service",
    "ServiceSettings",
    "Where",
    "build_index",
    "open_engine",
    "open_index",
    "read_index_manifest",
    "where",
]
