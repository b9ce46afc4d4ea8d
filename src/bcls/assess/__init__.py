"""Judging a model on a dataset: reads its scores from files and calls the figures of :mod:`bcls.evaluation`.

What stands here knows files, splits and text encoders, so that the figures themselves need to know arrays only.
"""

from bcls.assess.compare import compare
from bcls.assess.evaluate import Options, evaluate
from bcls.assess.graded import CaptionVectors
from bcls.assess.page import comparison_page, evaluation_page
from bcls.assess.page.pair_labels import PairLabels
from bcls.assess.scores import load_embeddings, load_similarity

__all__ = [
    "CaptionVectors",
    "Options",
    "PairLabels",
    "compare",
    "comparison_page",
    "evaluate",
    "evaluation_page",
    "load_embeddings",
    "load_similarity",
]
