"""Known noise in the training labels: what the relaxation alpha is there to survive."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bcls.training.batch_labels import BatchLabels


class NoisyLabels(BatchLabels):
    r"""Labels of a batch with noise that belongs to the pair.

    .. math:: r'_{ij} = \mathrm{clip}(r_{ij} + \sigma \epsilon_{ij}, -1, 1), \qquad \epsilon_{ij} \sim N(0, 1)

    drawn once for an image and a caption, so that a pair has one wrong label throughout training. Pairs of one image
    stay exactly 1.

    Args:
        embeddings: ``(C, d)``, as for :class:`bcls.training.batch_labels.BatchLabels`.
        image_of_caption: ``(C,)``.
        aggregate: The same.
        device: Where the labels are wanted.
        noise: Standard deviation :math:`\sigma`.
        seed: Of the draws; the same for every run that is compared.
    """

    def __init__(
        self,
        embeddings: NDArray[Any],
        image_of_caption: NDArray[np.int64],
        aggregate: Any,
        device: torch.device,
        *,
        noise: float,
        seed: int = 0,
    ) -> None:
        super().__init__(embeddings, image_of_caption, aggregate, device)
        shape = int(image_of_caption.max()) + 1, len(image_of_caption)
        drawn = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        self._noise = torch.from_numpy(drawn * np.float32(noise)).to(device)

    def __call__(self, captions: Any) -> Tensor:
        """Labels of a batch: row i is the image of caption i, column j is caption j."""
        labels = super().__call__(captions)
        chosen = torch.as_tensor(captions, dtype=torch.int64).to(self.device)
        images = self._images[chosen]
        noisy = (labels + self._noise[images[:, None], chosen]).clamp(-1, 1)
        return noisy.masked_fill(images[:, None] == images, 1.0)
