"""Figures of image-text retrieval, from a similarity matrix alone.

Rows are images and columns are captions, always; image-to-text (``i2t``) reads rows, text-to-image (``t2i``) reads
columns. Matrices are numpy arrays or torch tensors on any device, and every function returns a flat dict of floats.
"""

from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls

__all__ = ["kendall", "recalls"]
