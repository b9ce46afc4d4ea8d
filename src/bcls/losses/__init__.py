"""Every loss of the paper and those it is compared with; they know tensors only.

All are called as ``loss(similarity, relevance=None, *, image_ids=None)`` and give a scalar.
"""

from bcls.kernels.values import check_now
from bcls.losses._base import RetrievalLoss
from bcls.losses._names import LOSSES, SumLoss, from_name
from bcls.losses.bcls import BCLSLoss, bcls_loss
from bcls.losses.infonce import InfoNCELoss, infonce_loss
from bcls.losses.kendall import KendallLoss, kendall_loss
from bcls.losses.kendall_window import KendallWindowLoss, kendall_window_loss
from bcls.losses.ladder import LadderLoss, ladder_loss
from bcls.losses.ladder_adaptive import AdaptiveLadderLoss, adaptive_ladder_loss
from bcls.losses.sam import SAMLoss, sam_loss
from bcls.losses.sigmoid import SigmoidLoss, sigmoid_loss
from bcls.losses.triplet import TripletLoss, triplet_loss
from bcls.losses.triplet_hard import TripletHardLoss, triplet_hard_loss
from bcls.losses.triplet_soft import TripletSoftLoss, triplet_soft_loss

__all__ = [
    "LOSSES",
    "AdaptiveLadderLoss",
    "BCLSLoss",
    "InfoNCELoss",
    "KendallLoss",
    "KendallWindowLoss",
    "LadderLoss",
    "RetrievalLoss",
    "SAMLoss",
    "SigmoidLoss",
    "SumLoss",
    "TripletHardLoss",
    "TripletLoss",
    "TripletSoftLoss",
    "adaptive_ladder_loss",
    "bcls_loss",
    "check_now",
    "from_name",
    "infonce_loss",
    "kendall_loss",
    "kendall_window_loss",
    "ladder_loss",
    "sam_loss",
    "sigmoid_loss",
    "triplet_hard_loss",
    "triplet_loss",
    "triplet_soft_loss",
]
