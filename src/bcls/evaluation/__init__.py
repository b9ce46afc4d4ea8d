"""Figures of image-text retrieval, from a similarity matrix alone.

Rows are images and columns are captions, always; image-to-text (``i2t``) reads rows, text-to-image (``t2i``) reads
columns. Matrices are numpy arrays or torch tensors on any device, and every figure comes in a flat dict of floats.

Judging a model on a dataset: reads its scores from files and calls the figures of :mod:`bcls.evaluation`.

What stands here knows files, splits and text encoders, so that the figures themselves need to know arrays only.
"""

from bcls.evaluation.coco import cxc_image_image, cxc_text_text, eccv
from bcls.evaluation.evaluator import CaptionVectors, Options, compare, evaluate
from bcls.evaluation.graded import coherent_score, ncs, ndcg, one_per_image, pmrp
from bcls.evaluation.hubness import hubness, inverted_softmax, qb_norm, qb_norm_recalls
from bcls.evaluation.kendall import kendall
from bcls.evaluation.pages import PairLabels, comparison_page, evaluation_page
from bcls.evaluation.recall import QueryRanks, median_rank, query_ranks, recalls
from bcls.evaluation.scores import load_embeddings, load_similarity
from bcls.evaluation.statistics import human_correlation, paired_test, recall_intervals

__all__ = [
    "CaptionVectors",
    "Options",
    "PairLabels",
    "QueryRanks",
    "coherent_score",
    "compare",
    "comparison_page",
    "cxc_image_image",
    "cxc_text_text",
    "eccv",
    "evaluate",
    "evaluation_page",
    "hubness",
    "human_correlation",
    "inverted_softmax",
    "kendall",
    "load_embeddings",
    "load_similarity",
    "median_rank",
    "ncs",
    "ndcg",
    "one_per_image",
    "paired_test",
    "pmrp",
    "qb_norm",
    "qb_norm_recalls",
    "query_ranks",
    "recall_intervals",
    "recalls",
]
