"""Metrics of image-text retrieval, and evaluation of models, runs and files with them.

The metrics take a similarity matrix, a numpy array or a torch tensor on any device: rows are images and columns are
captions. Image to text (``i2t``) ranks the captions of each row, text to image (``t2i``) the images of each column.
Every metric function returns a flat dict of floats. :func:`evaluate` and :func:`compare` also accept models, training
runs and files with scores or embeddings.

``kendall`` and ``hubness`` are functions as well as modules. Both are imported here, so that the package attribute is
the function in either order of imports.
"""

from bcls.evaluation.coco import cxc_image_image, cxc_text_text, eccv
from bcls.evaluation.evaluator import CaptionVectors, compare, evaluate
from bcls.evaluation.graded import coherent_score, ncs, ndcg, one_per_image, pmrp
from bcls.evaluation.hubness import hubness, inverted_softmax, qb_norm, qb_norm_recalls
from bcls.evaluation.kendall import kendall
from bcls.evaluation.pages import comparison_page, evaluation_page
from bcls.evaluation.recall import QueryRanks, median_rank, query_ranks, recalls
from bcls.evaluation.scores import load_embeddings, load_similarity, score_model
from bcls.evaluation.stateful import RetrievalMetrics
from bcls.evaluation.statistics import human_correlation, paired_test, recall_intervals

__all__ = [
    "CaptionVectors",
    "QueryRanks",
    "RetrievalMetrics",
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
    "score_model",
]
