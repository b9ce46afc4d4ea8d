"""Base class of the losses: one call, named terms, one reduction; and the checked input of a loss."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from bcls._core.errors import check_choice, check_number, fail
from bcls.losses.backends import defers_checks, engine_for
from bcls.losses.definitions import SAME, at_least_float32, check_tensor, check_values, is_integer, raise_reported

Reduction = Literal["mean", "sum"]
#: A fixed number, or a parameter to learn it.
Temperature: TypeAlias = float | nn.Parameter


class Batch(NamedTuple):
    """Checked input of a loss: square, finite, floating point of at least 32 bits."""

    similarity: Tensor
    relevance: Tensor | None
    image_ids: Tensor | None
    lowest: float = -1.0  #: a lower bound of the labels
    raw: bool = False  #: whether values still have to be checked and labels to be clamped

    @property
    def size(self) -> int:
        """Number of images and captions, B."""
        return self.similarity.shape[0]

    @property
    def labels(self) -> Tensor:
        """The relevance, for losses that require it."""
        if self.relevance is None:
            hint = "compute them with bcls.labels.relevance, or use another loss"
            fail("relevance", "a (B, B) matrix of labels", None, f"this loss learns from continuous labels: {hint}")
        return self.relevance

    @property
    def same_image(self) -> Tensor:
        """(B, B) bool: the diagonal, and pairs with equal ``image_ids``; never negatives, whatever the label."""
        own = torch.eye(self.size, dtype=torch.bool, device=self.similarity.device)
        if self.image_ids is None:
            return own
        return own | (self.image_ids[:, None] == self.image_ids[None, :])

    @property
    def negatives(self) -> Tensor:
        """(B, B) bool: negatives of the binary losses, pairs with ``r < 1`` that are not of the same image."""
        if self.relevance is None:
            return ~self.same_image
        return ~self.same_image & (self.relevance < 1 - SAME)


class RetrievalLoss(nn.Module):
    """Base class of all losses: ``loss(similarity, relevance=None, *, image_ids=None)`` returns a scalar.

    A subclass implements :meth:`compute`, which gets checked input and returns named terms.

    On a CPU NaN, infinity and labels out of range raise an error immediately. On a CUDA device with Triton the loss
    does not wait for the device: the error is raised by the next call of any loss or by
    :func:`bcls.losses.check_now`. Inside ``torch.compile`` and ``torch.func.vmap`` only shapes are checked.

    Args:
        reduction: ``"sum"`` as in the equations of the paper, ``"mean"`` divides by B.

    Example:
        >>> class SquaredError(RetrievalLoss):
        ...     def compute(self, batch):
        ...         return {"error": reduce(((batch.similarity - batch.labels) ** 2).sum(), batch.size, self.reduction)}
        >>> SquaredError()(torch.zeros(2, 2), torch.eye(2))
        tensor(1.)
    """

    #: Whether ``relevance`` must lie in [-1, 1].
    bounded = True
    #: Arguments that ``learn_temperature=True`` turns into parameters, with the range they are clamped to.
    learnable: ClassVar[Mapping[str, tuple[float, float]]] = {}

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

    def check_learnable(
        self, argument: str, value: Temperature, learn: bool, hint: str, *, above: float = 0.0
    ) -> Temperature:
        """Check an argument in :attr:`learnable`, and turn a number into a parameter if ``learn`` is true."""
        if isinstance(value, nn.Parameter):
            if value.numel() != 1:
                fail(argument, "a number or an nn.Parameter with one element", f"shape {tuple(value.shape)}", hint)
            return value
        if hasattr(value, "requires_grad"):
            fail(argument, "a number or an nn.Parameter", "a plain tensor", "wrap it in nn.Parameter to learn it")
        value = check_number(argument, value, hint, above=above)
        low, high = self.learnable[argument]
        if learn and not low <= value <= high:
            fail(argument, f"an initial value in [{low:g}, {high:g}], since it is learned", f"{value:g}", hint)
        return nn.Parameter(torch.tensor(value)) if learn else value

    def learned(self, argument: str) -> float | Tensor:
        """Value of an argument in :attr:`learnable`; a parameter is clamped to its range, its gradient is not."""
        value = getattr(self, argument)
        if not isinstance(value, nn.Parameter):
            return float(value)
        return value + (value.clamp(*self.learnable[argument]) - value).detach()

    def fuses(self, batch: Batch) -> bool:
        """Whether :meth:`compute` uses a fused kernel for this batch that checks the values itself."""
        return False

    def terms(
        self, similarity: Tensor, relevance: Tensor | None = None, *, image_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Named scalars that sum to the loss, for logging."""
        batch = check_batch(similarity, relevance, image_ids, bounded=self.bounded)
        if batch.raw and not (_can_check(type(self)) and self.fuses(batch)):  # type: ignore[arg-type]
            batch = check_later(batch, bounded=self.bounded)
        return terms_of(self, batch, "loss")

    if TYPE_CHECKING:  # the signature of `forward`, which nn.Module hides

        def __call__(
            self, similarity: Tensor, relevance: Tensor | None = None, *, image_ids: Tensor | None = None
        ) -> Tensor:
            """See :meth:`forward`."""

    def forward(
        self, similarity: Tensor, relevance: Tensor | None = None, *, image_ids: Tensor | None = None
    ) -> Tensor:
        """The loss, a differentiable scalar."""
        return total(self.terms(similarity, relevance, image_ids=image_ids))


class AnchorLoss(RetrievalLoss):
    """Base class of losses that are a mean over anchors and over the two directions.

    A subclass implements :meth:`anchors` for one direction.

    Args:
        reduction: ``"mean"`` averages over the anchors, ``"sum"`` adds them.
    """

    #: Name of the term.
    name: ClassVar[str]
    #: Whether ``relevance`` is required; otherwise the label is 1 for pairs of the same image and -inf for others.
    needs_labels: ClassVar[bool] = True

    def anchors(self, scores: Tensor, labels: Tensor, same_image: Tensor) -> Tensor:
        """Loss of each anchor, ``(B,)``, from matrices ``(B, B)`` whose rows are the anchors."""
        raise NotImplementedError

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`RetrievalLoss.compute`."""
        scores, same = batch.similarity, batch.same_image
        if batch.relevance is None and not self.needs_labels:
            labels = scores.new_full((), -torch.inf).expand_as(scores).masked_fill(same, 1.0)
        else:
            labels = batch.labels
        value = self.anchors(scores.contiguous(), labels.contiguous(), same)
        value = value + self.anchors(scores.T.contiguous(), labels.T.contiguous(), same)
        return {self.name: reduce(value.sum() / 2, batch.size, self.reduction)}


def as_function(kind: type[RetrievalLoss], name: str) -> Callable[..., Tensor]:
    """The functional form of a loss class, with its arguments as keyword arguments.

    Args:
        kind: The class of the loss.
        name: Name of the function.

    Example:
        >>> from bcls.losses import triplet_loss
        >>> triplet_loss(torch.tensor([[0.9, 0.8], [0.1, 0.5]]), margin=0.2, reduction="sum")
        tensor(0.6000)
    """

    def function(
        similarity: Tensor, relevance: Tensor | None = None, *, image_ids: Tensor | None = None, **settings: Any
    ) -> Tensor:
        return kind(**settings)(similarity, relevance, image_ids=image_ids)

    inputs = list(inspect.signature(function).parameters.values())[:-1]
    settings = [one.replace(kind=one.KEYWORD_ONLY) for one in inspect.signature(kind).parameters.values()]
    function.__name__ = function.__qualname__ = name
    function.__module__ = kind.__module__
    function.__doc__ = f":class:`{kind.__name__}` as a function."
    function.__signature__ = inspect.Signature([*inputs, *settings], return_annotation=Tensor)  # type: ignore[attr-defined]
    return function


@functools.lru_cache(maxsize=256)
def _can_check(kind: type) -> bool:
    """Whether one class defines both: an inherited ``fuses`` does not describe an overridden ``compute``."""
    compute, fuses = (next(base for base in kind.__mro__ if name in vars(base)) for name in ("compute", "fuses"))
    return compute is fuses


def reduce(total: Tensor, size: int, reduction: Reduction) -> Tensor:
    """Apply a reduction: ``"sum"`` is the equation of the paper, ``"mean"`` divides it by B."""
    return total if reduction == "sum" else total / size


def total(terms: dict[str, Tensor]) -> Tensor:
    """Sum of named terms."""
    return functools.reduce(torch.add, terms.values())


def check_part(argument: str, part: object, reduction: Reduction, *, bounded: bool = True) -> nn.Module:
    """Check a part of a composed loss: a module with the same reduction and the same scale of ``relevance``."""
    if not isinstance(part, nn.Module):
        fail(argument, "a loss, an nn.Module", repr(part), "create one with bcls.losses.from_name")
    if isinstance(part, RetrievalLoss) and part.reduction != reduction:
        hint = "use the same reduction for the part and the whole"
        fail(argument, f'a loss with reduction="{reduction}", as the whole', f'"{part.reduction}"', hint)
    if isinstance(part, RetrievalLoss) and part.bounded != bounded:
        expected = f"a loss with `relevance` {'in [-1, 1]' if bounded else 'of any scale'}, as the whole"
        fail(argument, expected, type(part).__name__, "SAM uses another scale than the other losses: use it alone")
    return part


def terms_of(loss: nn.Module, batch: Batch, name: str) -> dict[str, Tensor]:
    """Terms of a loss for checked input; a module that is no :class:`RetrievalLoss` gives one term, called ``name``."""
    if not isinstance(loss, RetrievalLoss):
        return {name: loss(batch.similarity, batch.relevance, image_ids=batch.image_ids)}
    terms = loss.compute(batch)
    if not isinstance(terms, dict) or not terms:
        hint = 'write for example `return {"error": value}`'
        fail(f"{type(loss).__name__}.compute", "a dict of named scalars as its result", type(terms).__name__, hint)
    return terms


def numbers_like(tensor: Tensor, values: Sequence[float]) -> Tensor:
    """A vector of a tensor's type, created on its device: a CUDA graph cannot record a copy from the host."""
    return torch.stack([tensor.new_full((), value) for value in values]) if values else tensor.new_zeros(0)


def check_batch(
    similarity: Tensor, relevance: Tensor | None = None, image_ids: Tensor | None = None, *, bounded: bool = True
) -> Batch:
    """Check shapes, devices and values, and convert numbers to at least float32.

    Values are not read inside ``torch.compile`` and ``torch.func.vmap``, where that is impossible, nor on a CUDA
    device with Triton, where it would wait: the batch is then raw, see :func:`check_later`.

    Args:
        similarity: ``(B, B)`` float; rows are images, columns are captions.
        relevance: ``(B, B)`` float, or None.
        image_ids: ``(B,)`` integers, or None.
        bounded: Whether ``relevance`` must lie in [-1, 1].

    Raises:
        ValueError: If a shape, dtype, device or value is wrong, here or on the device in an earlier call.
    """
    _check_matrix("similarity", similarity)
    if similarity.shape[0] != similarity.shape[1] or similarity.shape[0] == 0:
        expected = "a square matrix (B, B), one row for each image, one column for each caption, pairs on the diagonal"
        hint = "repeat the row of an image for each of its captions in the batch, and pass image_ids"
        fail("similarity", expected, f"shape {tuple(similarity.shape)}", hint)
    ids = None if image_ids is None else _check_ids(image_ids, similarity)
    if relevance is not None:
        relevance = _check_relevance(relevance, similarity)
    if defers_checks(similarity):
        raise_reported(similarity.device)
        return Batch(at_least_float32(similarity), relevance, ids, raw=True)
    lowest = check_values(similarity, relevance, bounded=bounded)
    return Batch(at_least_float32(similarity), _clamped(relevance, bounded=bounded), ids, lowest)


def check_later(batch: Batch, *, bounded: bool) -> Batch:
    """A raw batch with its labels clamped; the device checks its values, and the next call raises any error."""
    engine_for(batch.similarity.device).check_values(batch.similarity.detach(), batch.relevance, bounded=bounded)
    return batch._replace(relevance=_clamped(batch.relevance, bounded=bounded), raw=False)


def _clamped(relevance: Tensor | None, *, bounded: bool) -> Tensor | None:
    return relevance.clamp(-1, 1) if relevance is not None and bounded else relevance


def _check_matrix(argument: str, matrix: Tensor) -> None:
    check_tensor(argument, matrix)
    if matrix.ndim != 2 or not matrix.is_floating_point():
        got = f"shape {tuple(matrix.shape)} of {matrix.dtype}"
        hint = "rows are images, columns are captions" if matrix.ndim != 2 else "convert it with .float()"
        fail(argument, "a matrix (B, B) of floating point numbers", got, hint)


def _check_relevance(relevance: Tensor, similarity: Tensor) -> Tensor:
    _check_matrix("relevance", relevance)
    if relevance.shape != similarity.shape:
        hint = "compute the labels from the captions of this batch, in the same order"
        fail("relevance", f"the shape of `similarity`, {tuple(similarity.shape)}", tuple(relevance.shape), hint)
    if relevance.device != similarity.device:
        fail("relevance", f"a tensor on {similarity.device}", f"one on {relevance.device}", "move it with .to(...)")
    # Labels get no gradient, and half precision is too coarse to separate windows.
    return at_least_float32(relevance.detach())


def _check_ids(image_ids: Tensor, similarity: Tensor) -> Tensor:
    try:
        ids = torch.as_tensor(image_ids, device=similarity.device)
    except (TypeError, ValueError, RuntimeError) as error:
        fail("image_ids", f"{similarity.shape[0]} integers", repr(image_ids), f"torch reports: {error}")
    if ids.shape != similarity.shape[:1] or not is_integer(ids):
        got = f"shape {tuple(ids.shape)} of {ids.dtype}"
        hint = "number the images of the dataset and pass the numbers of this batch"
        fail("image_ids", f"{similarity.shape[0]} integers, one for each row", got, hint)
    return ids
