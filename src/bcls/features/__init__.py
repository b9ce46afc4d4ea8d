"""Pretrained networks that turn pictures into grids of features.

Features of a dataset's pictures, extracted once and kept in files.

Long work in blocks, in this process or spread over a cluster.
"""

from bcls.features.arrays import FeatureSettings
from bcls.features.backbones import Backbone, load_backbone
from bcls.features.extract import Extraction, extract
from bcls.features.jobs import ENGINES, Ahead, Start, Worker, run_blocks, torch_threads
from bcls.features.regions import VIEWS, View, crops, parse_regions, pool_regions

__all__ = [
    "ENGINES",
    "VIEWS",
    "Ahead",
    "Backbone",
    "Extraction",
    "FeatureSettings",
    "Start",
    "View",
    "Worker",
    "crops",
    "extract",
    "load_backbone",
    "parse_regions",
    "pool_regions",
    "run_blocks",
    "torch_threads",
]
