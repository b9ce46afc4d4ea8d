"""Features of a dataset's pictures, extracted once and kept in files."""

from bcls.features.run import Extraction, extract
from bcls.features.settings import FeatureSettings

__all__ = ["Extraction", "FeatureSettings", "extract"]
