"""A metric with state, in the style of torchmetrics: ``update`` for each batch, then ``compute`` and ``reset``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bcls._core.errors import fail
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import check_ks, recalls

if TYPE_CHECKING:
    from torch import Tensor


class RetrievalMetrics:
    """Recall at K, their sum and Kendall's tau, collected over batches and processes.

    Batches have pairs of an image and a caption. Every image and every caption is counted once, in the order of its id,
    so that the result depends neither on batches and processes nor on the items that a distributed sampler repeats. If
    ``torch.distributed`` is initialized, :meth:`compute` gathers the batches of all processes, and all of them must
    call it. For models with one vector per item.

    Args:
        ks: The cut-offs K.

    Example:
        >>> import torch
        >>> metrics = RetrievalMetrics(ks=(1,))
        >>> metrics.update(torch.eye(2), torch.eye(2), image_ids=torch.tensor([7, 3]), caption_ids=torch.tensor([0, 1]))
        >>> metrics.compute()
        {'i2t_r1': 100.0, 't2i_r1': 100.0, 'rsum': 200.0}
    """

    def __init__(self, ks: Sequence[int] = (1, 5, 10)) -> None:
        self.ks = check_ks(ks)
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._batches: list[tuple[Tensor, ...]] = []

    def update(
        self, images: Tensor, captions: Tensor, image_ids: Tensor, caption_ids: Tensor, vectors: Tensor | None = None
    ) -> None:
        """Add a batch of pairs.

        Args:
            images: ``(b, d)`` embeddings of the images; an image occurs once for each of its captions.
            captions: ``(b, d)`` embeddings of the captions. Similarities are dot products.
            image_ids: ``(b,)`` integers.
            caption_ids: ``(b,)`` integers.
            vectors: ``(b, w)`` sentence embeddings of the captions, from which labels are computed; adds Kendall's tau.

        Raises:
            ValueError: An argument is no tensor of that shape, lengths or widths differ, or only some batches have
                ``vectors``.
        """
        import torch

        given = {"images": images, "captions": captions, "image_ids": image_ids, "caption_ids": caption_ids}
        given |= {} if vectors is None else {"vectors": vectors}
        for name, rows in given.items():
            axes = 1 if name.endswith("_ids") else 2
            if not isinstance(rows, torch.Tensor) or rows.ndim != axes:
                got = f"shape {tuple(rows.shape)}" if isinstance(rows, torch.Tensor) else type(rows).__name__
                fail(name, f"a tensor {'(b,)' if axes == 1 else '(b, d)'}", got, "pass one row for each pair")
        lengths = [len(rows) for rows in given.values()]
        if len(set(lengths)) > 1:
            fail("images", "as many rows as captions, ids and vectors", lengths, "pass one row for each pair")
        first = self._batches[0] if self._batches else tuple(given.values())
        if len(first) != len(given):
            fail("vectors", "vectors in all batches or in none", "both kinds of batches", "call reset() in between")
        widths = images.shape[1], captions.shape[1]
        if set(widths) != {first[0].shape[1]}:
            expected = f"embeddings of images and captions of width {first[0].shape[1]}"
            fail("captions", expected, f"widths {widths}", "use the two encoders of one model")
        self._batches.append(tuple(rows.detach() for rows in given.values()))

    def compute(self) -> dict[str, float]:
        """Compute the metrics of all batches since the last ``reset``, of all processes.

        Returns:
            The metrics of :func:`bcls.evaluation.recalls`, and with ``vectors`` of :func:`bcls.evaluation.kendall`.

        Raises:
            ValueError: There is no batch.
        """
        import torch
        from torch import distributed

        from bcls.labels.relevance import relevance

        batches = self._batches
        if distributed.is_available() and distributed.is_initialized():
            gathered: list[list[tuple[Tensor, ...]]] = [[] for _ in range(distributed.get_world_size())]
            distributed.all_gather_object(gathered, [tuple(rows.cpu() for rows in batch) for batch in batches])
            device = batches[0][0].device if batches else "cpu"
            batches = [tuple(rows.to(device) for rows in batch) for part in gathered for batch in part]
        if not batches:
            fail("batches", "at least one call of update()", "none", "call update() with each batch first")
        images, captions, image_ids, caption_ids, *vectors = (torch.cat(rows) for rows in zip(*batches, strict=True))
        once = np.unique(caption_ids.cpu().numpy(), return_index=True)[1]
        _, first, owner = np.unique(image_ids.cpu().numpy()[once], return_index=True, return_inverse=True)
        similarity = images[once[first]].float() @ captions[once].float().T
        metrics = recalls(similarity, owner, self.ks)
        if vectors:
            labels = vectors[0][once].float().cpu().numpy()
            metrics |= kendall(similarity, relevance(labels, labels, owner, caption_image=owner))
        return metrics
