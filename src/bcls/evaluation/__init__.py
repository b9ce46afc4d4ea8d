"""Figures of image-text retrieval, from a similarity matrix alone.

Rows are images and columns are captions, always; image-to-text (``i2t``) reads rows, text-to-image (``t2i``) reads
columns. Matrices are numpy arrays or torch tensors on any device, and every figure comes in a flat dict of floats.
"""

from bcls.evaluation.bootstrap import paired_test, recall_intervals
from bcls.evaluation.coherent import coherent_score, one_per_image
from bcls.evaluation.cxc import cxc_image_image, cxc_text_text
from bcls.evaluation.eccv import eccv
from bcls.evaluation.hubness import hubness
from bcls.evaluation.human import human_correlation
from bcls.evaluation.kendall import kendall
from bcls.evaluation.median import QueryRanks, median_rank, query_ranks
from bcls.evaluation.ncs import ncs
from bcls.evaluation.ndcg import ndcg
from bcls.evaluation.pmrp import pmrp
from bcls.evaluation.querybank import inverted_softmax, qb_norm, qb_norm_recalls
from bcls.evaluation.recall import recalls

__all__ = [
    "QueryRanks",
    "coherent_score",
    "cxc_image_image",
    "cxc_text_text",
    "eccv",
    "hubness",
    "human_correlation",
    "inverted_softmax",
    "kendall",
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
