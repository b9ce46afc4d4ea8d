"""Fused and streaming forms of the losses; :mod:`bcls.losses` is the plain form and the definition.

Triton kernels on NVIDIA devices, plain torch elsewhere, with the same values and gradients.
"""

from bcls.kernels.engines import usable, without_kernels
from bcls.kernels.kendall import kendall_matrix
from bcls.kernels.matrix import Terms, matrix_loss
from bcls.kernels.settings import SoftNegatives, Windows, rungs, sliding_windows
from bcls.kernels.streaming import streaming_loss
from bcls.kernels.values import check_now

__all__ = [
    "SoftNegatives",
    "Terms",
    "Windows",
    "check_now",
    "kendall_matrix",
    "matrix_loss",
    "rungs",
    "sliding_windows",
    "streaming_loss",
    "usable",
    "without_kernels",
]
