"""Calls of the public names, with every type written out; checked with ``mypy --strict`` from outside."""

import numpy as np
import torch
from torch import Tensor, nn

from bcls import __version__
from bcls.evaluation.graded import ndcg
from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls
from bcls.losses import BCLSLoss, KendallWindowLoss, RetrievalLoss, TripletSoftLoss, bcls_loss, from_name
from bcls.models import build
from bcls.models.base import RetrievalModel

version: str = __version__
similarity: Tensor = torch.eye(4)
relevance: Tensor = torch.eye(4)
ids: Tensor = torch.arange(4)

loss: BCLSLoss = BCLSLoss(alpha=0.2, beta=0.1, lse="mean", reduction="sum")
value: Tensor = loss(similarity, relevance, image_ids=ids)
terms: dict[str, Tensor] = loss.terms(similarity, relevance)
base: RetrievalLoss = KendallWindowLoss(mining="hard", window_norm="valid")
parts: BCLSLoss = BCLSLoss(binary=TripletSoftLoss(margin=0.3), continuous=KendallWindowLoss())
named: nn.Module = from_name("infonce+kendall-sw-hs", **{"infonce.temperature": 0.1})
plain: Tensor = bcls_loss(similarity, relevance, gamma=20.0)


class Own(RetrievalLoss):
    """A loss of one's own."""

    margin: float = 0.1


figures: dict[str, float] = recalls(np.eye(4), np.arange(4), ks=(1,))
taus: dict[str, float] = kendall(similarity, relevance)
gains: dict[str, float] = ndcg(similarity, relevance, k=2)
model: RetrievalModel = build({"name": "vsepp", "words": 20, "features": 8, "width": 16})
vectors: Tensor = model.encode_images(torch.zeros(2, 3, 8))
