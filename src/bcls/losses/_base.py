"""What all losses share: one call, named terms, one reduction."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from bcls._core.errors import check_choice, check_number, fail
from bcls.losses._batch import Batch, check_batch, look_later

Reduction = Literal["mean", "sum"]


def reduce(total: Tensor, size: int, reduction: Reduction) -> Tensor:
    """``"sum"`` is the paper's equation, ``"mean"`` is that divided by B."""
    return total if reduction == "sum" else total / size


class RetrievalLoss(nn.Module):
    """Base of all losses: ``loss(similarity, relevance=None, *, image_ids=None)`` gives a scalar.

    A subclass writes :meth:`compute`, which gets checked input and returns its named terms.

    NaN, infinity and labels out of range are refused at once on a CPU. On a CUDA device with Triton nothing waits for
    the device: what it finds is raised by the next call of any loss or by :func:`bcls.losses.check_now`. Inside
    ``torch.compile`` and ``torch.func.vmap`` values cannot be looked at, only shapes.
    """

    #: Whether ``relevance`` must lie in [-1, 1].
    bounded = True

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        check_choice("reduction", reduction, ("mean", "sum"))
        self.reduction: Reduction = reduction

    def extra_repr(self) -> str:
        """The settings, for ``print(loss)``."""
        settings = {key: value for key, value in vars(self).items() if key[0] != "_" and key != "training"}
        return ", ".join(f"{key}={value!r}" for key, value in settings.items())

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """Named terms of the loss, reduced and weighted, for checked input."""
        raise NotImplementedError

    def fuses(self, batch: Batch) -> bool:
        """Whether fused kernels of :mod:`bcls.kernels` serve this batch; they look at its values themselves."""
        return False

    def terms(
        self, similarity: Tensor, relevance: Tensor | None = None, *, image_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Named scalars that sum to the loss, for logging."""
        batch = check_batch(similarity, relevance, image_ids, bounded=self.bounded)
        # What a subclass computes in a way of its own does not look at the values.
        if batch.raw and not (_owner(type(self), "compute") is _owner(type(self), "fuses") and self.fuses(batch)):
            batch = look_later(batch, bounded=self.bounded)
        return self.compute(batch)

    if TYPE_CHECKING:  # what nn.Module makes of `forward`, with its types

        def __call__(
            self, similarity: Tensor, relevance: Tensor | None = None, *, image_ids: Tensor | None = None
        ) -> Tensor: ...

    def forward(
        self, similarity: Tensor, relevance: Tensor | None = None, *, image_ids: Tensor | None = None
    ) -> Tensor:
        """The loss, a scalar that keeps the graph."""
        return total(self.terms(similarity, relevance, image_ids=image_ids))


def _owner(kind: type, name: str) -> type:
    """The class that a method was written in."""
    return next(base for base in kind.__mro__ if name in vars(base))


def total(terms: dict[str, Tensor]) -> Tensor:
    """Sum of named terms."""
    first, *others = terms.values()
    for term in others:
        first = first + term
    return first


def check_part(argument: str, part: object, reduction: Reduction, *, bounded: bool = True) -> nn.Module:
    """A part of a composed loss: a module that is reduced and reads ``relevance`` as the whole does."""
    if not isinstance(part, nn.Module):
        fail(argument, "a loss, an nn.Module", repr(part), "make one by its name with bcls.losses.from_name")
    if isinstance(part, RetrievalLoss) and part.reduction != reduction:
        remedy = "give the part and the whole the same one"
        fail(argument, f'a loss with reduction="{reduction}" as the whole', f'"{part.reduction}"', remedy)
    if isinstance(part, RetrievalLoss) and part.bounded != bounded:
        expected = f"a loss that reads `relevance` {'in [-1, 1]' if bounded else 'of any scale'}, as the whole"
        fail(argument, expected, type(part).__name__, "SAM reads another scale than the others: use it alone")
    return part


def terms_of(loss: nn.Module, batch: Batch, name: str) -> dict[str, Tensor]:
    """Terms of a part of a composed loss, checked once; a foreign module is called and gives one term."""
    if isinstance(loss, RetrievalLoss):
        return loss.compute(batch)
    return {name: loss(batch.similarity, batch.relevance, image_ids=batch.image_ids)}


def numbers_like(tensor: Tensor, values: Sequence[float]) -> Tensor:
    """A few numbers as a vector of a tensor's type, made on its device: a copy from the host cannot be recorded."""
    return torch.stack([tensor.new_full((), value) for value in values]) if values else tensor.new_zeros(0)


def number_or_parameter(
    argument: str, value: float | nn.Parameter, remedy: str, *, above: float = -float("inf")
) -> float | nn.Parameter:
    """A checked number, or a scalar parameter as it is: the optimizer owns its value."""
    if isinstance(value, nn.Parameter):
        if value.numel() != 1:
            fail(argument, "a number or an nn.Parameter with one element", f"shape {tuple(value.shape)}", remedy)
        return value
    if hasattr(value, "requires_grad"):
        fail(
            argument, "a number or an nn.Parameter", "a plain tensor", "wrap it in nn.Parameter if it is to be learned"
        )
    return check_number(argument, value, remedy, above=above)
