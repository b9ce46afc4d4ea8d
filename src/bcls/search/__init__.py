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

__all__ = [
    "ENGINES",
    "FITS",
    "Calibration",
    "CaptionHit",
    "Catalog",
    "Engine",
    "Hit",
    "Index",
    "IndexManifest",
    "IndexReport",
    "IndexSettings",
    "IndexUnavailableError",
    "IndexedCaption",
    "Neighbors",
    "OverloadedError",
    "Photo",
    "PhotoIndex",
    "PhotoInfo",
    "SearchFilter",
    "SearchResult",
    "Service",
    "ServiceSettings",
    "VectorRow",
    "build_index",
    "open_engine",
    "open_index",
    "parse_filter",
    "parse_query",
    "read_index_manifest",
]
