"""Several networks side by side as one."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from bcls.backbones.base import Backbone


class JoinedBackbone(Backbone):
    """Networks whose grids are put on top of one another: the channels of the first, then those of the second, ...

    All see the picture that the one with the largest side wants, the others reduced from it. Grids are pooled to the
    smallest one's size and shifted so that their means, the global vectors, stay exactly what they were.

    Args:
        parts: The networks, two or more.
    """

    def __init__(self, parts: Sequence[Backbone]) -> None:
        largest = max(parts, key=lambda part: part.side)
        super().__init__(
            "+".join(part.name for part in parts),
            "+".join(part.weights for part in parts),
            largest.side,
            mean=(0.0,) * 3,
            std=(1.0,) * 3,
            resample=largest.resample,
            packaged=all(part.packaged for part in parts),
        )
        self.parts = nn.ModuleList(parts)
        self._cells = min((part.grid for part in parts), key=lambda grid: grid[0] * grid[1])
        self._look()

    def cells(self, inputs: Tensor) -> Tensor:
        """See :meth:`Backbone.cells`."""
        return torch.cat([self._of(part, inputs) for part in self.parts], dim=1)

    def _of(self, part: nn.Module, inputs: Tensor) -> Tensor:
        side = int(part.side)  # type: ignore[arg-type]  # a Backbone's
        if side != inputs.shape[-1]:
            inputs = interpolate(inputs, (side, side), mode="bilinear", antialias=True, align_corners=False)
        grid: Tensor = part(inputs)
        if grid.shape[2:] == self._cells:
            return grid
        pooled = adaptive_avg_pool2d(grid, self._cells)
        return pooled + (grid.mean((2, 3), keepdim=True) - pooled.mean((2, 3), keepdim=True))
