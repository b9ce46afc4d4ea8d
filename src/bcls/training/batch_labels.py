"""Labels of a batch, computed on the training device from the embeddings of all captions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from bcls._core.errors import fail
from bcls.labels.caption_metrics import CiderD, ptb_tokens
from bcls.training.config import CIDER, Aggregate
from bcls.training.memory import fits_in_memory
from bcls.training.sampler import Indices

#: Embeddings that are checked at once: they may be a mapped file that is larger than the memory.
_BLOCK = 1 << 16
#: Indices of captions.
Captions = Sequence[int] | Indices | Tensor


class BatchLabels:
    r"""Relevance of the captions of a batch to its images, ``(B, B)`` float32, equal to :func:`bcls.labels.relevance`.

    .. math:: r_{ij} = \max_{k : \mathrm{image}(k) = \mathrm{image}(i)} \cos(x_k, x_j)

    over all captions of the image, also those outside of the batch; ``"mean"`` averages, ``"paired"`` takes caption i
    alone. Pairs of one image are exactly 1. No matrix of the size of the dataset squared is ever computed.

    Args:
        embeddings: ``(C, d)`` embeddings of the captions, float16 or wider, of any length; a memory-mapped file works.
        image_of_caption: ``(C,)`` index of each caption's image.
        aggregate: ``"max"``, ``"mean"`` or ``"paired"``.
        device: Device of the labels; the embeddings are kept there if they fit into memory.
        noise: Standard deviation of normal noise in the labels. It is drawn once for each image and caption, so that a
            pair has the same wrong label throughout training, the same one in all runs. Pairs of one image stay exactly
            1, the others within [-1, 1]. :meth:`unimodal` has no noise.

    Raises:
        ValueError: An embedding is zero or not finite, or their number differs from that of the captions.
    """

    def __init__(
        self,
        embeddings: npt.NDArray[Any],
        image_of_caption: Indices,
        aggregate: Aggregate,
        device: torch.device,
        noise: float = 0.0,
    ) -> None:
        if len(embeddings) != len(image_of_caption):
            expected = f"{len(image_of_caption)} rows, one for each caption"
            fail("embeddings", expected, len(embeddings), "embed the captions again: bcls labels embed")
        for first in range(0, len(embeddings), _BLOCK):
            rows = embeddings[first : first + _BLOCK]
            wrong = np.flatnonzero(~np.isfinite(rows).all(1) | ~rows.any(1))
            if len(wrong):
                hint = "the caption is probably empty: run bcls data check, then embed again"
                got = f"another one for caption {first + int(wrong[0])}"
                fail("embeddings", "finite vectors that are not zero", got, hint)
        self.aggregate, self.device = aggregate, device
        self._images = torch.from_numpy(image_of_caption).to(device)
        self._table, self._real = (torch.from_numpy(one).to(device) for one in _caption_table(image_of_caption))
        #: Whether all embeddings are on the device, so that labels need no data from the host.
        self.on_device = fits_in_memory(embeddings.shape[0] * embeddings.shape[1] * 4, device)
        self._embeddings = _unit(embeddings, device) if self.on_device else embeddings
        self._noise: Tensor | None = None
        if noise:
            drawn = np.random.default_rng(0).standard_normal((len(self._table), len(embeddings)), dtype=np.float32)
            self._noise = torch.from_numpy(drawn * np.float32(noise)).to(device)

    def __call__(self, captions: Captions) -> Tensor:
        """Labels of a batch: row i is the image of caption i, column j is caption j."""
        chosen, images = self._find(captions)
        # Labels stay in float32 in every precision of the model: half precision cannot separate windows.
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            columns = self._rows(chosen)
            if self.aggregate == "paired":
                cosines = columns @ columns.T
            else:
                cosines = _aggregate(self._references(images), columns, self.aggregate, self._real[images])
            if self._noise is not None:
                cosines = cosines.clamp(-1, 1) + self._noise[images[:, None], chosen]
            return cosines.clamp(-1, 1).masked_fill(images[:, None] == images, 1.0)

    def unimodal(self, captions: Captions) -> tuple[Tensor, Tensor]:
        r"""Similarities between the images of a batch and between its captions, two times ``(B, B)`` float32.

        .. math::
            q^V_{ij} = \max_{k, l : \mathrm{image}(k) = \mathrm{image}(i),\, \mathrm{image}(l) = \mathrm{image}(j)}
                \cos(x_k, x_l), \qquad q^T_{ij} = \cos(x_i, x_j)

        with the mean over the pairs of captions for ``"mean"``, and :math:`\cos(x_i, x_j)` for ``"paired"``. An image
        has the similarity 1 to itself, also if it is in the batch twice.
        """
        chosen, images = self._find(captions)
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            columns = self._rows(chosen)
            between_texts = between_images = columns @ columns.T
            if self.aggregate != "paired":
                references, real = self._references(images), self._real[images]
                if self.aggregate == "max":
                    every = _aggregate(references, references.transpose(0, 1).flatten(0, 1), "max", real)
                    between_images = every.view(len(images), -1, len(images)).amax(1)
                else:
                    means = _mean(references, real)
                    between_images = means @ means.T
            own = images[:, None] == images
            return between_images.clamp(-1, 1).masked_fill(own, 1.0), between_texts.clamp(-1, 1)

    def _find(self, captions: Captions) -> tuple[Tensor, Tensor]:
        """Captions and their images by indices on the device."""
        chosen = torch.as_tensor(captions, dtype=torch.int64).to(self.device, non_blocking=True)
        return chosen, self._images[chosen]

    def _references(self, images: Tensor) -> Tensor:
        """``(B, K, d)`` captions of images. Those with fewer repeat one, which means leave out by ``_real``."""
        own = self._table[images]
        return self._rows(own.reshape(-1)).view(*own.shape, -1)

    def streaming_inputs(self, captions: Captions) -> dict[str, Tensor]:
        """Inputs of :class:`bcls.losses.StreamingBCLSLoss` that give the labels of a batch, except for ``"mean"``."""
        chosen, images = self._find(captions)
        inputs = {"captions": self._rows(chosen), "image_ids": images}
        if self.aggregate == "max":
            row, turn = self._real[images].nonzero(as_tuple=True)
            inputs |= {"references": self._rows(self._table[images[row], turn]), "reference_image": row}
        return inputs

    def _rows(self, captions: Tensor) -> Tensor:
        if isinstance(self._embeddings, Tensor):
            return self._embeddings[captions]
        return _unit(self._embeddings[captions.cpu().numpy()], self.device)


class CiderLabels:
    """CIDEr-D of the captions of a batch with the captions of its images, ``(B, B)`` float32 from 0 to 10.

    All captions of an image are references, the caption itself included. Document frequencies are those of ``texts``.

    Args:
        texts: C captions.
        image_of_caption: ``(C,)`` index of each caption's image.
        device: Device of the labels.

    Raises:
        ValueError: Java is missing.
        MissingExtraError: ``pycocoevalcap`` is not installed.
    """

    #: Labels are computed on the CPU.
    on_device = False

    def __init__(self, texts: Sequence[str], image_of_caption: Indices, device: torch.device) -> None:
        self.device = device
        self._images = image_of_caption
        self._scores = CiderD([text.split() for text in ptb_tokens(CIDER, texts)], image_of_caption)

    def __call__(self, captions: Captions) -> Tensor:
        """Labels of a batch: row i is the image of caption i, column j is caption j."""
        chosen = torch.as_tensor(captions, dtype=torch.int64).cpu().numpy()
        return torch.from_numpy(self._scores(self._images[chosen], chosen)).to(self.device)


#: Makes the labels of a batch.
LabelSource = BatchLabels | CiderLabels


def _aggregate(references: Tensor, columns: Tensor, aggregate: str, real: Tensor) -> Tensor:
    """``(B, K, d)`` captions of the images against ``(B, d)`` captions; ``real`` marks those of the K that count."""
    if aggregate == "max":
        best = references[:, 0] @ columns.T
        for turn in range(1, references.shape[1]):
            best = torch.maximum(best, references[:, turn] @ columns.T)
        return best
    return _mean(references, real) @ columns.T


def _mean(references: Tensor, real: Tensor) -> Tensor:
    """``(B, d)`` means of the captions that count."""
    weights = real.to(references.dtype) / real.sum(1, keepdim=True)
    return torch.einsum("bkd,bk->bd", references, weights)


def _caption_table(image_of_caption: Indices) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """``(N, K)`` captions of each image, and which of them count: images with fewer than K repeat their first one.

    Example:
        >>> _caption_table(np.array([0, 1, 0]))[0]
        array([[0, 2],
               [1, 1]])
    """
    order = np.argsort(image_of_caption, kind="stable")
    counts = np.bincount(image_of_caption)
    starts = np.cumsum(counts) - counts
    offsets = np.arange(int(counts.max(initial=1)))
    real = offsets < counts[:, None]
    place = np.where(real, starts[:, None] + offsets, starts[:, None])
    return order[np.minimum(place, len(order) - 1)], real


def _unit(rows: npt.NDArray[Any], device: torch.device) -> Tensor:
    # A copy: torch warns about arrays that it may not write to, such as mapped files.
    return functional.normalize(torch.from_numpy(np.array(rows)).to(device, torch.float32), dim=1)
