"""BCLS as a loss of pytorch-metric-learning, across modalities or within one.

The losses of that library use classes: two items have the same label or not. Here a table gives the relevance between
labels, so that the order of the wrong items is learned as well.

Run it: ``python examples/metric_learning_loss.py``
"""

from typing import Any

import torch
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor, nn

from bcls.data.synthetic import make_scenes, render_all, true_relevance
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls
from bcls.losses import BCLSLoss, RetrievalLoss


class BCLSMetricLoss(BaseMetricLossFunction):
    """``loss_fn(embeddings, labels, ref_emb=..., ref_labels=...)``; row i of both sides is a pair.

    Images against captions: ``labels`` are indices of images, ``ref_labels`` indices of captions, and the table is
    ``(images, captions)``. Without ``ref_emb`` the embeddings are compared with themselves, ``labels`` are classes, and
    the table is ``(classes, classes)`` with ones on the diagonal.

    Args:
        relevance: The table, in [-1, 1]; 1 for captions of the image itself.
        loss: Any loss of ``bcls.losses``; BCLS by default.
        **others: Arguments of the base class, such as ``distance``; cosine similarity by default.
    """

    def __init__(self, relevance: Tensor, loss: RetrievalLoss | None = None, **others: Any) -> None:
        super().__init__(**others)
        self.register_buffer("relevance", relevance, persistent=False)
        self.loss = BCLSLoss() if loss is None else loss

    def get_default_distance(self) -> CosineSimilarity:
        """Cosine similarity: larger means closer."""
        return CosineSimilarity()

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Any, ref_emb: Tensor, ref_labels: Tensor
    ) -> dict[str, Any]:
        """Called by the base class with the arguments of ``forward``.

        Raises:
            ValueError: Labels are missing, pairs of a miner are given, or the distance is not a similarity.
        """
        if labels is None or ref_labels is None or indices_tuple is not None:
            raise ValueError("BCLSMetricLoss needs labels on both sides and no miner: it mines within the whole batch")
        if not self.distance.is_inverted:
            raise ValueError("BCLSMetricLoss needs a similarity, such as CosineSimilarity, not a distance")
        similarity = self.distance(embeddings, ref_emb)
        table = self.relevance.to(similarity.device)[labels][:, ref_labels]
        # Rows with the same label are not negatives of each other.
        value = self.loss(similarity, table, image_ids=labels)
        return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


def main(steps: int = 80) -> dict[str, dict[str, float]]:
    """Train a linear image tower and a bag of words on synthetic scenes; returns metrics before and after."""
    data = make_scenes(60, seed=0)
    truth = torch.from_numpy(true_relevance(data.scenes, data.captions)).float()  # (images, captions), in [0, 1]
    images = torch.from_numpy(data.image_of_caption)
    pixels = torch.from_numpy(render_all(data.scenes, size=32)).flatten(1).float() / 255 - 0.5
    words = sorted({word for text in data.texts for word in text.split()})
    bags = torch.tensor([[word in text.split() for word in words] for text in data.texts]).float()

    torch.manual_seed(0)
    towers = nn.ModuleList([nn.Linear(pixels.shape[1], 64), nn.Linear(len(words), 64)])
    loss_fn = BCLSMetricLoss(truth)

    def metrics() -> dict[str, float]:
        similarity = loss_fn.distance(towers[0](pixels), towers[1](bags)).detach()
        return recalls(similarity, images) | kendall(similarity, truth)

    before = metrics()
    optimizer = torch.optim.Adam(towers.parameters(), lr=1e-3)
    for _ in range(steps):
        captions = torch.randperm(len(images))[:64]  # of 60 scenes, so that some occur twice
        codes = towers[0](pixels[images[captions]]), towers[1](bags[captions])
        loss = loss_fn(codes[0], images[captions], ref_emb=codes[1], ref_labels=captions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"before": before, "after": metrics()}


if __name__ == "__main__":
    print(main())
