"""Photo search: build an index of photos, and search it by text or by image."""

from bcls.search.batcher import OverloadedError
from bcls.search.build import IndexReport, IndexSettings, build_index
from bcls.search.calibration import FITS, Calibration
from bcls.search.catalog import Catalog, IndexedCaption, Photo
from bcls.search.engine import (
    ENGINES,
    Engine,
    IndexUnavailableError,
    Neighbors,
    SearchFilter,
    VectorRow,
    parse_filter,
    parse_query,
)
from bcls.search.index import Index, IndexManifest, open_engine, open_index, read_index_manifest
from bcls.search.photo_index import PhotoIndex
from bcls.search.service import CaptionHit, Hit, PhotoInfo, SearchResult, Service, ServiceSettings

__all__ = ["Index", "IndexManifest", "IndexReport", "IndexSettings", "PhotoIndex", "build_index", "open_index"]
__all__ += ["FITS", "Calibration", "Catalog", "IndexedCaption", "Photo", "read_index_manifest"]
__all__ += ["IndexUnavailableError", "OverloadedError"]
__all__ += ["ENGINES", "Engine", "Neighbors", "SearchFilter", "VectorRow", "open_engine", "parse_filter", "parse_query"]
__all__ += ["CaptionHit", "Hit", "PhotoInfo", "SearchResult", "Service", "ServiceSettings"]
