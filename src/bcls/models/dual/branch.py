"""One side of a dual encoder: encoder, pooling, head."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bcls._checks import fail
from bcls._padded import Padded
from bcls.models.dual.heads import Head
from bcls.models.dual.images import values_of
from bcls.models.dual.pooling import GPO, pool
from bcls.models.images import feature_batch
from bcls.similarity import unit


class Branch(nn.Module):
    """An encoder, frozen or not, then pooling and a head; gives unit vectors ``(N, D)``.

    Inputs are what the encoder takes (token numbers, pixels), or features that a frozen encoder gave before: ``(N, d)``
    or ``(N, L, d)``, of captions as floats, which are told apart by their type and shape. Mean, max and the like come
    before the head, so that the features of a frozen encoder are one vector an item; GPO comes after it, as in
    VSE-infinity.

    Args:
        side: ``"images"`` or ``"texts"``, for messages.
        encoder: A module that gives features, with their ``width``, whether it is ``packaged``, and ``prepare(items)``,
            from what a person has to what it takes.
        pooling: See :func:`pool`; ``"gpo"``; anything where the encoder gives vectors.
        head: The head.
        tuned: Whether the encoder is trained.
        weights: Of heads side by side, P of them: a vector is then P unit vectors of D / P in a row, each times the
            root of its share of the weights, so that a product of two is the weighted mean of P cosines.
    """

    shares: Tensor

    def __init__(
        self, side: str, encoder: Any, pooling: str, head: Head, *, tuned: bool, weights: Sequence[float] = (1.0,)
    ) -> None:
        super().__init__()
        self.side, self.tuned, self.kind = side, tuned, pooling
        shares = torch.tensor(weights, dtype=torch.float64)
        self.register_buffer("shares", (shares / shares.sum()).sqrt().float()[:, None], persistent=False)
        self.encoder = encoder
        self.head = head
        self.gpo = GPO() if pooling == "gpo" else None
        if not tuned:
            self.encoder.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> "Branch":
        """Set the mode; a frozen encoder stays in eval mode, so that its dropout is off and its statistics stay."""
        super().train(mode)
        if not self.tuned:
            self.encoder.eval()
        return self

    def prepare(self, items: Any) -> Padded:
        """From what a person has to what the branch takes, on the CPU.

        Raises:
            ValueError: Features of another width, with wrong lengths or with NaN in them, or features where the encoder
                is trained.
        """
        values = values_of(items)
        if values is None or not self._is_features(values):
            prepared: Padded = self.encoder.prepare(items)
            return prepared
        self._check(values)
        width = self.encoder.width
        return feature_batch(items, width, shapes=self._shapes, dimensions=(2, 3), argument=self.side)

    def features(self, inputs: Padded) -> Padded:
        """What the head takes: ``(N, d)``, or ``(N, L, d)`` with lengths under GPO."""
        if not self._is_features(inputs.values):
            if inputs.values.shape[0] == 0:  # transformers cannot encode nothing
                return Padded(torch.zeros(0, self.encoder.width, device=inputs.values.device))
            with torch.set_grad_enabled(self.tuned and torch.is_grad_enabled()):
                inputs = self.encoder(inputs)
        else:
            self._check(inputs.values)
        if inputs.values.ndim == 3 and self.gpo is None:
            return Padded(pool(self.kind, inputs))
        return inputs

    def forward(self, inputs: Padded) -> Tensor:
        """See the class."""
        features = self.features(inputs)
        vectors: Tensor = self.head(features.values)
        if self.gpo is not None and vectors.ndim == 3:
            vectors = self.gpo(Padded(vectors, features.lengths))
        # In float32 also under autocast; a zero vector stays one and passes no gradient.
        vectors = vectors.float()
        if len(self.shares) == 1:
            return unit(vectors)
        side_by_side = vectors.view(*vectors.shape[:-1], len(self.shares), -1)
        joined: Tensor = (unit(side_by_side) * self.shares).flatten(-2)
        return joined

    def _is_features(self, values: Tensor) -> bool:
        # Whole numbers are token numbers on the side of the texts; pixels have four axes.
        return (values.is_floating_point() or self.side == "images") and values.ndim != 4

    @property
    def _shapes(self) -> str:
        return f"features (N, {self.encoder.width}) or (N, L, {self.encoder.width})"

    def _check(self, values: Tensor) -> None:
        if values.ndim not in (2, 3) or values.shape[-1] != self.encoder.width:
            fail(self.side, self._shapes, tuple(values.shape), "they are of another encoder")
        if self.tuned:
            got = "features that were made before"
            fail(self.side, "what the encoder reads, since it is trained", got, "they would pass it by")
