"""The losses of the paper and those it is compared with, for PyTorch.

Every loss is called as ``loss(similarity, relevance=None, *, image_ids=None)`` and returns a scalar;
:class:`StreamingBCLSLoss` is called with embeddings instead of a matrix. To add a loss to this package, import it here
and register its name below.

On a CUDA device with Triton, BCLS, the window loss, the Kendall loss and the soft-negative triplet loss run fused
kernels (:mod:`bcls.losses.fused`, behind :mod:`bcls.losses.backends`). Elsewhere, and inside :func:`without_kernels`,
every loss runs its plain form in torch, which defines its value.
"""

from functools import partial

from bcls.losses.backends import without_kernels
from bcls.losses.base import Batch, RetrievalLoss, reduce
from bcls.losses.bcls import BCLSLoss, bcls_loss
from bcls.losses.contrastive import InfoNCELoss, SigmoidLoss, infonce_loss, sigmoid_loss
from bcls.losses.definitions import check_now
from bcls.losses.kendall import KendallLoss, KendallWindowLoss, kendall_loss, kendall_window_loss
from bcls.losses.ladder import AdaptiveLadderLoss, LadderLoss, adaptive_ladder_loss, ladder_loss
from bcls.losses.listwise import (
    LambdaLoss,
    ListMLELoss,
    RankNContrastLoss,
    RecallSurrogateLoss,
    SmoothAPLoss,
    SmoothNDCGLoss,
    lambda_loss,
    listmle_loss,
    rank_n_contrast_loss,
    recall_surrogate_loss,
    smooth_ap_loss,
    smooth_ndcg_loss,
)
from bcls.losses.registry import LOSSES, SumLoss, from_name, register_loss
from bcls.losses.sam import SAMLoss, sam_loss
from bcls.losses.soft_labels import CWCLLoss, SoftLabelKLLoss, XCLRLoss, cwcl_loss, soft_label_kl_loss, xclr_loss
from bcls.losses.streaming import StreamingBCLSLoss
from bcls.losses.triplet import (
    TripletHardLoss,
    TripletLoss,
    TripletSoftLoss,
    triplet_hard_loss,
    triplet_loss,
    triplet_soft_loss,
)

register_loss("triplet", TripletLoss)
register_loss("triplet-hn", TripletHardLoss)
register_loss("triplet-sn", TripletSoftLoss)
register_loss("kendall", KendallLoss)
register_loss("kendall-sw", partial(KendallWindowLoss, mining="none"))
register_loss("kendall-sw-hs", partial(KendallWindowLoss, mining="hard"))
register_loss("bcls", BCLSLoss)
register_loss("ladder", LadderLoss)
register_loss("ladder-adaptive", AdaptiveLadderLoss)
register_loss("sam", SAMLoss)
register_loss("infonce", InfoNCELoss)
register_loss("sigmoid", SigmoidLoss)
register_loss("csa", SoftLabelKLLoss)
register_loss("xclr", XCLRLoss)
register_loss("cwcl", CWCLLoss)
register_loss("sndcg", SmoothNDCGLoss)
register_loss("listmle", ListMLELoss)
register_loss("rnc", RankNContrastLoss)
register_loss("lambda", LambdaLoss)
register_loss("smooth-ap", SmoothAPLoss)
register_loss("recall", RecallSurrogateLoss)

__all__ = [
    "LOSSES",
    "AdaptiveLadderLoss",
    "BCLSLoss",
    "Batch",
    "CWCLLoss",
    "InfoNCELoss",
    "KendallLoss",
    "KendallWindowLoss",
    "LadderLoss",
    "LambdaLoss",
    "ListMLELoss",
    "RankNContrastLoss",
    "RecallSurrogateLoss",
    "RetrievalLoss",
    "SAMLoss",
    "SigmoidLoss",
    "SmoothAPLoss",
    "SmoothNDCGLoss",
    "SoftLabelKLLoss",
    "StreamingBCLSLoss",
    "SumLoss",
    "TripletHardLoss",
    "TripletLoss",
    "TripletSoftLoss",
    "XCLRLoss",
    "adaptive_ladder_loss",
    "bcls_loss",
    "check_now",
    "cwcl_loss",
    "from_name",
    "infonce_loss",
    "kendall_loss",
    "kendall_window_loss",
    "ladder_loss",
    "lambda_loss",
    "listmle_loss",
    "rank_n_contrast_loss",
    "recall_surrogate_loss",
    "reduce",
    "register_loss",
    "sam_loss",
    "sigmoid_loss",
    "smooth_ap_loss",
    "smooth_ndcg_loss",
    "soft_label_kl_loss",
    "triplet_hard_loss",
    "triplet_loss",
    "triplet_soft_loss",
    "without_kernels",
    "xclr_loss",
]
