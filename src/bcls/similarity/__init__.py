"""Scores of all images with all captions, as functions of tensors: cosines, and cross-attention in blocks."""

from bcls.similarity.blocks import Budget, all_pairs, caption_blocks
from bcls.similarity.cosine import cosine
from bcls.similarity.filtration import FiltrationWeights, filtered_scores, running
from bcls.similarity.nodes import CaptionSide, ImageSide, NodeWeights, image_side, similarity_nodes
from bcls.similarity.reasoning import ReasoningWeights, Step, reasoned_scores, reasoning_step
from bcls.similarity.unit import unit, wide

__all__ = [
    "Budget",
    "CaptionSide",
    "FiltrationWeights",
    "ImageSide",
    "NodeWeights",
    "ReasoningWeights",
    "Step",
    "all_pairs",
    "caption_blocks",
    "cosine",
    "filtered_scores",
    "image_side",
    "reasoned_scores",
    "reasoning_step",
    "running",
    "similarity_nodes",
    "unit",
    "wide",
]
