"""Losses by name, and sums of them."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from bcls._core.errors import check_choice, check_numbers, fail
from bcls.losses._base import RetrievalLoss, check_part, terms_of
from bcls.losses._batch import Batch
from bcls.losses.bcls import BCLSLoss
from bcls.losses.infonce import InfoNCELoss
from bcls.losses.kendall import KendallLoss
from bcls.losses.kendall_window import KendallWindowLoss
from bcls.losses.ladder import LadderLoss
from bcls.losses.ladder_adaptive import AdaptiveLadderLoss
from bcls.losses.sam import SAMLoss
from bcls.losses.sigmoid import SigmoidLoss
from bcls.losses.triplet import TripletLoss
from bcls.losses.triplet_hard import TripletHardLoss
from bcls.losses.triplet_soft import TripletSoftLoss

#: Every loss by its name.
LOSSES: dict[str, Callable[..., RetrievalLoss]] = {
    "triplet": TripletLoss,
    "triplet-hn": TripletHardLoss,
    "triplet-sn": TripletSoftLoss,
    "kendall": KendallLoss,
    "kendall-sw": partial(KendallWindowLoss, mining="none"),
    "kendall-sw-hs": partial(KendallWindowLoss, mining="hard"),
    "bcls": BCLSLoss,
    "ladder": LadderLoss,
    "ladder-adaptive": AdaptiveLadderLoss,
    "sam": SAMLoss,
    "infonce": InfoNCELoss,
    "sigmoid": SigmoidLoss,
}


class SumLoss(RetrievalLoss):
    """A weighted sum of losses on the same batch; what ``from_name("a+b")`` builds.

    Args:
        parts: The losses by name.
        weights: One for each; 1 by default.

    Example:
        >>> import torch
        >>> loss = SumLoss({"infonce": InfoNCELoss(), "order": KendallWindowLoss()}, weights=(1.0, 2.0))
        >>> sorted(loss.terms(torch.eye(3), torch.eye(3)))
        ['infonce', 'order']
    """

    def __init__(self, parts: dict[str, nn.Module], weights: Sequence[float] | None = None) -> None:
        if not isinstance(parts, dict) or not parts:
            fail("parts", "a dict with at least one loss by its name", parts, "name the losses to add up")
        if any(not isinstance(name, str) or "." in name for name in parts):
            fail("parts", "names without a dot", list(parts), "a dot stands between the name of a part and its term")
        first = next((part for part in parts.values() if isinstance(part, RetrievalLoss)), None)
        super().__init__("mean" if first is None else first.reduction)
        # A part on its own scale (SAM) frees the labels, which others would misread.
        self.bounded = first is None or first.bounded
        for name, part in parts.items():
            check_part(name, part, self.reduction, bounded=self.bounded)
        self.names = list(parts)
        self.parts = nn.ModuleList(parts.values())
        weights = [1.0] * len(parts) if weights is None else weights
        self.weights = check_numbers("weights", weights, "1 leaves a loss as it is", count=len(parts), low=0)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        terms = {}
        for name, part, weight in zip(self.names, self.parts, self.weights, strict=True):
            for key, term in (named := terms_of(part, batch, name)).items():
                terms[name if len(named) == 1 else f"{name}.{key}"] = weight * term
        return terms


def from_name(name: str, **arguments: Any) -> RetrievalLoss:
    """A loss from its name, or a sum of losses from their names.

    Args:
        name: One of ``triplet``, ``triplet-hn``, ``triplet-sn``, ``kendall``, ``kendall-sw``, ``kendall-sw-hs``,
            ``bcls``, ``ladder``, ``ladder-adaptive``, ``sam``, ``infonce``, ``sigmoid``, or several joined by ``+``.
        **arguments: Arguments of the loss. In a sum they are addressed, as ``{"infonce.temperature": 0.07}``; plain
            ``reduction`` goes to every part and plain ``weights`` to :class:`SumLoss`.

    Raises:
        ValueError: If a name or an argument is not known.

    Example:
        >>> from_name("bcls", alpha=0.1).continuous.alpha
        0.1
        >>> loss = from_name("infonce+kendall-sw-hs", weights=(1, 2), **{"infonce.temperature": 0.07})
        >>> loss.names, loss.parts[0].temperature
        (['infonce', 'kendall-sw-hs'], 0.07)
    """
    parts = [part.strip() for part in name.split("+")] if isinstance(name, str) else [name]
    for part in parts:
        check_choice("name", part, LOSSES)
    if len(set(parts)) < len(parts):
        fail("name", "each loss once", repr(name), "give a repeated loss a larger weight instead")
    if len(parts) == 1:
        plain = {key.removeprefix(f"{parts[0]}."): value for key, value in arguments.items()}
        if len(plain) < len(arguments):
            fail(parts[0], "each argument once", list(arguments), f"leave out those that begin with {parts[0]}.")
        return _build(parts[0], plain)
    own: dict[str, dict[str, Any]] = {part: {} for part in parts}
    weights = arguments.pop("weights", None)
    if "reduction" in arguments:
        reduction = arguments.pop("reduction")
        own = {part: {"reduction": reduction} for part in parts}
    for key, value in arguments.items():
        part, dot, argument = key.partition(".")
        if not dot or part not in own:
            fail(
                key, f"an argument addressed to {' or '.join(parts)}", repr(key), f"write {parts[0]}.{argument or key}"
            )
        own[part][argument] = value
    return SumLoss({part: _build(part, own[part]) for part in parts}, weights)


def _build(name: str, arguments: dict[str, Any]) -> RetrievalLoss:
    make = LOSSES[name]
    fixed = make.keywords if isinstance(make, partial) else {}
    known = [argument for argument in inspect.signature(make).parameters if argument not in fixed]
    for argument in arguments:
        check_choice(f"{name}: argument", argument, known)
    return make(**arguments)
