r"""Open vocabulary: the ImageNet classes of the image encoder as further coordinates of a dual encoder's vectors.

Heads trained on a small dataset know little outside its themes. The classifier of the frozen image encoder knows 1,000
classes, and the text encoder knows their names and definitions. With class probabilities :math:`p(I)`, the softmax of
the logits times a sharpness, unit vectors N of the classes and their mean :math:`\bar n`, an image and a text get

.. math:: v = \ell \, \frac{N^\top p(I) - \bar n}{\lVert N^\top p(I) - \bar n \rVert}, \quad
    t = \frac{y_T - \bar n}{\lVert y_T - \bar n \rVert}

The length :math:`\ell` brings both parts to one scale. A text moves from the trained heads to these coordinates the
farther it is from the training captions, measured by its largest cosine c with centroids of their vectors:

.. math::
    s(I, T) = \tfrac{1}{\sqrt 2} \left[ \sqrt{1 - g} \, s_{heads} + \sqrt{g} \, v^\top t \right], \quad
    g = \sigma\!\left(\frac{c_0 - c}{w}\right)

It stays one dot product of unit vectors: images have one more coordinate that fills their norm up to 1, which is 0 for
texts.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from bcls.models.layers import unit

#: Classes, width of the text vectors, and centroids of the training captions.
CLASSES, WIDTH, CENTROIDS = 1000, 384, 256


class OpenImages(nn.Module):
    """Appends the class coordinates to the vectors of images; see the module.

    Args:
        encoder: The image encoder, with a ``backbone`` that has ``class_logits``.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self._backbone: tuple[Any] = (encoder.backbone,)  # a tuple, since it is a part of the encoder already
        self.register_buffer("names", torch.zeros(CLASSES, WIDTH))
        self.register_buffer("sharpness", torch.ones(()))
        self.register_buffer("length", torch.ones(()))

    def forward(self, features: Tensor, vectors: Tensor) -> Tensor:
        """``(N, D + 385)`` unit vectors of features ``(N, d)`` and the unit vectors ``(N, D)`` of the heads."""
        names = self.get_buffer("names")
        logits: Tensor = self._backbone[0].class_logits(features) * self.get_buffer("sharpness")
        length = self.get_buffer("length")
        added = unit(logits.softmax(-1) @ names - names.mean(0)) * length
        rest = torch.ones_like(added[:, :1]) * (1 - length.square()).sqrt()
        combined: Tensor = torch.cat([vectors, added, rest], dim=-1) * math.sqrt(0.5)
        return combined


class OpenTexts(nn.Module):
    """Appends the class coordinates to the vectors of texts; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("centroids", torch.zeros(CENTROIDS, WIDTH))
        self.register_buffer("gate", torch.tensor([0.0, 1.0]))

    def forward(self, features: Tensor, vectors: Tensor) -> Tensor:
        """``(C, D + 385)`` unit vectors of features ``(C, d)`` and the unit vectors ``(C, D)`` of the heads."""
        own = unit(features[:, -WIDTH:])
        middle, width = self.get_buffer("gate")
        nearest = (own @ self.get_buffer("centroids").T).amax(-1, keepdim=True)
        share = torch.sigmoid((middle - nearest) / width)
        added = unit(own - self.get_buffer("mean")) * share.sqrt()
        return torch.cat([vectors * (1 - share).sqrt(), added, torch.zeros_like(share)], dim=-1)
