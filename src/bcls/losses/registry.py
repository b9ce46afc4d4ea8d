"""Losses by name, sums of losses, and the registration of new ones."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from bcls._core.errors import IMPORT_HINT, check_choice, check_numbers, fail, prefix_errors
from bcls.losses.base import Batch, RetrievalLoss, check_part, terms_of

#: Every registered loss by its name; filled by :func:`register_loss`.
LOSSES: dict[str, Callable[..., RetrievalLoss]] = {}


def register_loss(name: str, loss: Callable[..., RetrievalLoss]) -> None:
    """Register a loss, so that :func:`from_name`, configuration files and the command line accept its name.

    Args:
        name: The name, without ``+``, ``.`` and outer spaces.
        loss: A subclass of :class:`RetrievalLoss`, or a callable that returns one. Its parameters are the arguments
            of the loss. A class that is defined again, as in a notebook, replaces the one of the same name and module.

    Raises:
        ValueError: If the name is invalid or already registered for another loss, or ``loss`` is neither a class nor
            a function.

    Example:
        >>> from bcls.losses import TripletLoss, from_name, register_loss
        >>> class WideTriplet(TripletLoss):
        ...     def __init__(self, margin=0.5, reduction="mean"):
        ...         super().__init__(margin, reduction)
        >>> register_loss("triplet-wide", WideTriplet)
        >>> from_name("triplet-wide+infonce", **{"triplet-wide.margin": 0.4}).parts[0].margin
        0.4
        >>> del LOSSES["triplet-wide"]
    """
    if not isinstance(name, str) or not name or name != name.strip() or any(mark in name for mark in "+."):
        fail("name", "a name without '+', '.' and outer spaces", repr(name), "choose one such as 'my-loss'")
    if not callable(loss) or isinstance(loss, nn.Module):
        fail("loss", "a subclass of RetrievalLoss", repr(loss), "pass the class itself")
    if _path(LOSSES.get(name, loss)) != _path(loss):
        fail("name", "a name that is not registered yet", repr(name), "choose another name")
    LOSSES[name] = loss


def _path(loss: Callable[..., RetrievalLoss]) -> tuple[Any, Any]:
    """Module and name of a class or function; an object without a name stands for itself."""
    return getattr(loss, "__module__", None), getattr(loss, "__qualname__", loss)


class SumLoss(RetrievalLoss):
    """A weighted sum of losses on the same batch; the result of ``from_name("a+b")``.

    Args:
        parts: The losses by name.
        weights: One weight for each; 1 by default.

    Example:
        >>> import torch
        >>> from bcls.losses import InfoNCELoss, KendallWindowLoss
        >>> loss = SumLoss({"infonce": InfoNCELoss(), "order": KendallWindowLoss()}, weights=(1.0, 2.0))
        >>> sorted(loss.terms(torch.eye(3), torch.eye(3)))
        ['infonce', 'order']
    """

    def __init__(self, parts: dict[str, nn.Module], weights: Sequence[float] | None = None) -> None:
        if not isinstance(parts, dict) or not parts:
            fail("parts", "a dict with at least one loss by its name", parts, "name the losses to add")
        if any(not isinstance(name, str) or "." in name for name in parts):
            fail("parts", "names without a dot", list(parts), "a dot separates the name of a part from its term")
        first = next((part for part in parts.values() if isinstance(part, RetrievalLoss)), None)
        super().__init__("mean" if first is None else first.reduction)
        # A part on its own scale (SAM) accepts labels out of range, which other losses would misinterpret.
        self.bounded = first is None or first.bounded
        for name, part in parts.items():
            check_part(name, part, self.reduction, bounded=self.bounded)
        self.names = list(parts)
        self.parts = nn.ModuleList(parts.values())
        weights = [1.0] * len(parts) if weights is None else weights
        self.weights = check_numbers("weights", weights, "use 1 for an unweighted sum", count=len(parts), low=0)

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        terms = {}
        for name, part, weight in zip(self.names, self.parts, self.weights, strict=True):
            for key, term in (named := terms_of(part, batch, name)).items():
                terms[name if len(named) == 1 else f"{name}.{key}"] = weight * term
        return terms


def from_name(name: str, **arguments: Any) -> RetrievalLoss:
    """Create a loss by its name, or a sum of losses such as ``infonce+kendall-sw-hs``.

    Args:
        name: A name in :data:`LOSSES`, or several joined by ``+``.
        arguments: Arguments of the loss. In a sum they are addressed as ``infonce.temperature``; ``weights`` (one
            number for each loss) and ``reduction`` apply to the sum.

    Raises:
        ValueError: If a name or an argument is unknown (the message suggests the closest one), or a value is missing
            or wrong.

    Example:
        >>> from_name("bcls", alpha=0.1).continuous.alpha
        0.1
        >>> loss = from_name("infonce+kendall-sw-hs", weights=(1, 2), **{"infonce.temperature": 0.07})
        >>> loss.names, loss.parts[0].temperature
        (['infonce', 'kendall-sw-hs'], 0.07)
    """
    parts = [part.strip() for part in name.split("+")] if isinstance(name, str) else [name]
    for part in parts:
        check_choice("name", part, LOSSES, hint=IMPORT_HINT)
    if len(set(parts)) < len(parts):
        fail("name", "each loss once", repr(name), "use a larger weight instead of a repeated loss")
    if len(parts) == 1:
        plain = {key.removeprefix(f"{parts[0]}."): value for key, value in arguments.items()}
        if len(plain) < len(arguments):
            fail(parts[0], "each argument once", list(arguments), f"omit those that begin with {parts[0]}.")
        return _build(parts[0], plain)
    weights = arguments.pop("weights", None)
    shared = {"reduction": arguments.pop("reduction")} if "reduction" in arguments else {}
    own: dict[str, dict[str, Any]] = {part: dict(shared) for part in parts}
    for key, value in arguments.items():
        part, dot, argument = key.partition(".")
        if not dot or part not in own:
            wanted = argument or key
            owner = next((one for one in parts if wanted in _parameters(one)), parts[0])
            fail(key, f"an argument addressed to {' or '.join(parts)}", repr(key), f"write {owner}.{wanted}")
        own[part][argument] = value
    built: dict[str, nn.Module] = {}
    for part in parts:
        with prefix_errors(f"{part}."):
            built[part] = _build(part, own[part])
    return SumLoss(built, weights)


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    """Parameters of a registered loss, without those that its name determines."""
    make = LOSSES[name]
    fixed = make.keywords if isinstance(make, partial) else {}
    return {key: one for key, one in inspect.signature(make).parameters.items() if key not in fixed}


def _build(name: str, arguments: dict[str, Any]) -> RetrievalLoss:
    known = _parameters(name)
    for argument in arguments:
        check_choice(argument, argument, known, kind=f"an argument of the loss {name!r}")
    for argument, parameter in known.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and parameter.default is parameter.empty and argument not in arguments:
            fail(argument, f"a value, which the loss {name!r} requires", "none", "give it, or add a default")
    return LOSSES[name](**arguments)
