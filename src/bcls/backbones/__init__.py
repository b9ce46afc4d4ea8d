"""Pretrained networks that turn pictures into grids of features."""

from bcls.backbones.base import Backbone
from bcls.backbones.load import load_backbone
from bcls.backbones.regions import parse_regions, pool_regions
from bcls.backbones.views import VIEWS, View, crops

__all__ = ["VIEWS", "Backbone", "View", "crops", "load_backbone", "parse_regions", "pool_regions"]
