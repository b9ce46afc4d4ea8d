"""Calls that the type checker must refuse; the comment names the kind of error that it must find on the line."""

import torch

from bcls.evaluation.kendall import kendall
from bcls.evaluation.recall import recalls
from bcls.losses import BCLSLoss, KendallWindowLoss, TripletLoss
from bcls.models import build, load

similarity = torch.eye(4)

BCLSLoss(lse="median")  # error: arg-type
BCLSLoss(margins=0.2)  # error: call-arg
KendallWindowLoss(mining="soft")  # error: arg-type
TripletLoss(reduction="max")  # error: arg-type
TripletLoss()([[1.0]])  # error: arg-type
TripletLoss()(similarity, similarity, torch.arange(4))  # error: call-arg
number: float = BCLSLoss()(similarity, similarity)  # error: assignment
recalls(similarity)  # error: call-arg
names: list[str] = kendall(similarity, similarity)  # error: assignment
load(3)  # error: arg-type
build({"name": "vsepp"}).encode_pictures([])  # error: operator
