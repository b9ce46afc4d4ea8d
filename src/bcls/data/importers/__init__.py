"""Reads other layouts of images and captions into a dataset folder."""

from bcls.data.importers.run import KINDS, Imported, run_import
from bcls.data.importers.settings import ImportSettings

__all__ = ["KINDS", "ImportSettings", "Imported", "run_import"]
