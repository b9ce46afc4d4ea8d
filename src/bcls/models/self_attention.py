"""Self-attention over regions and over words: one vector for a whole image and for a whole caption."""

import torch
from torch import Tensor, nn

from bcls._padded import Padded
from bcls.models.config import DETECTOR_REGIONS
from bcls.models.layers import xavier_linear
from bcls.models.masked_norm import masked_batch_norm
from bcls.similarity import unit, wide


class SelfAttention(nn.Module):
    r"""One vector from several, weighted by how they agree with their mean.

    .. math::
        \bar x = \mathrm{mean}_r x_r, \quad
        a = \mathrm{softmax}_r(w \cdot (g(x_r) \odot h(\bar x)) + b), \quad
        \mathrm{unit}(\textstyle\sum_r a_r x_r)

    with g and h one layer each: linear, tanh, dropout, and for images a batch norm before the tanh.

    Args:
        width: D.
        dropout: Share dropped in training.
        regions: For images: their number of regions. The authors' batch norm of g has one mean and variance for each
            of 36 regions; with any other number it has one for each of the D channels. ``None`` for captions, which
            have no batch norm.
    """

    def __init__(self, width: int, dropout: float, regions: int | None = None) -> None:
        super().__init__()
        self.local = xavier_linear(width, width)
        self.whole = xavier_linear(width, width)
        self.common = xavier_linear(width, 1)
        self.dropout = nn.Dropout(dropout)
        self.per_region = regions == DETECTOR_REGIONS
        self.local_norm: nn.BatchNorm1d | None = None
        self.whole_norm: nn.BatchNorm1d | None = None
        if regions is not None:
            self.local_norm = nn.BatchNorm1d(DETECTOR_REGIONS if self.per_region else width)
            self.whole_norm = nn.BatchNorm1d(width)

    def forward(self, items: Padded) -> Tensor:
        """``(N, D)`` unit vectors from ``(N, L, D)``."""
        values, mask = items.values, items.mask
        mean = (values * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        local, whole = self.local(values), self.whole(mean)
        if self.local_norm is not None and self.whole_norm is not None:
            some = None if items.lengths is None else mask
            local = masked_batch_norm(local, some, self.local_norm, axis=1 if self.per_region else 2)
            # One image has no variance to divide by; the running one is all there is.
            whole = masked_batch_norm(whole[:, None], None, self.whole_norm, axis=2)[:, 0]
        agreed = self.dropout(local.tanh()) * self.dropout(whole.tanh())[:, None]
        logits = self.common(agreed)[..., 0].to(wide(values.dtype)).masked_fill(~mask, -torch.inf)
        return unit((logits.softmax(1).to(values.dtype)[:, None] @ values)[:, 0])
