"""Loss and gradients of the batches of a step: encode, gather, score, loss, backward pass.

With ``micro_batch`` gradients are cached (:class:`CachedCodes`): the memory of the encoders is that of a micro batch,
and the loss still sees the whole batch. With ``streaming`` the loss is computed from the embeddings, and neither the
scores nor the labels of the batch exist as a matrix.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bcls.losses import RetrievalLoss, StreamingBCLSLoss
from bcls.models.layers import Padded, unit
from bcls.training.distributed import gather_codes
from bcls.training.loader import Batch
from bcls.training.sampler import sizes_of_ranks
from bcls.training.setup import TrainState

#: The codes of images and of captions.
Codes = tuple[Padded, Padded]
#: Values by name.
Terms = dict[str, Tensor]


def accumulate_gradients(state: TrainState, loss: nn.Module, batches: Sequence[Batch]) -> Terms:
    """Add the gradients of one batch, or the mean of those of several, to the gradients of the parameters.

    Returns:
        The terms of the loss and the standard deviation of the scores (``spread``), on the device.

    Raises:
        FloatingPointError: The scores are not finite.
        ValueError: The batch does not fit into memory.
    """
    accelerator, micro = state.accelerator, state.config.micro_batch
    # Every process computes the whole streaming loss, but only the gradient of its own codes.
    scale = accelerator.num_processes if isinstance(loss, StreamingBCLSLoss) else 1
    values: Terms = {}
    try:
        for number, batch in enumerate(batches):
            waits = number + 1 < len(batches)  # gradients are exchanged once, with the last batch
            with accelerator.no_sync(state.parallel) if waits else nullcontext():
                cached = None
                if 0 < micro < max(sizes_of_ranks(batch.pairs, accelerator.num_processes)):
                    cached = CachedCodes(lambda *inputs: encode(state, *inputs), batch.images, batch.texts, micro)
                codes = encode(state, batch.images, batch.texts) if cached is None else cached.codes
                terms, spread = terms_and_spread(state, loss, codes, batch)
                accelerator.backward(torch.stack(list(terms.values())).sum() * scale / len(batches))
                if cached is not None:
                    cached.backward(lambda: accelerator.no_sync(state.parallel))
            for name, value in (*terms.items(), ("spread", spread)):
                values[name] = values.get(name, 0) + value.detach() / len(batches)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"`batch`: expected one that fits into the memory of {accelerator.device}, got {state.config.batch} pairs; "
            "lower --batch, set or lower --micro-batch, or use --precision bf16 or more processes"
        ) from error
    return values


def encode(state: TrainState, images: Padded, texts: Padded) -> Codes:
    """The codes of this process's images and captions, in the precision of the run."""
    with state.accelerator.autocast():
        codes: Codes = state.parallel(images, texts)
    return codes


def gather(state: TrainState, codes: Codes, pairs: int) -> Codes:
    """The codes of all processes, which have ``pairs`` pairs together."""
    sizes = sizes_of_ranks(pairs, state.accelerator.num_processes)
    return gather_codes(codes[0], sizes), gather_codes(codes[1], sizes)


def score_pairs(state: TrainState, codes: Codes) -> Tensor:
    """Scores of all pairs of the batch of all processes, ``(B, B)`` float32.

    Scores of vectors are computed in float32 also in mixed precision: bf16 has three digits, and scores would tie.
    """
    images, texts = codes
    if images.values.ndim == texts.values.ndim == 2:
        return state.model.scores(Padded(images.values.float()), Padded(texts.values.float()))
    with state.accelerator.autocast():
        scores = state.model.scores(images, texts)
    return scores.float()


def terms_and_spread(state: TrainState, loss: nn.Module, codes: Codes, batch: Batch) -> tuple[Terms, Tensor]:
    """The terms of the loss by name, and the standard deviation of the scores.

    A loss that is no :class:`bcls.losses.RetrievalLoss` has one term, ``loss``.
    """
    if isinstance(loss, StreamingBCLSLoss):
        units = [unit(side.values.float()) for side in codes]  # as `cosine` does
        terms = loss.terms(*units, **(batch.label_inputs or {}))
        every = gather(state, (Padded(units[0].detach()), Padded(units[1].detach())), batch.pairs)
        return terms, spread_of_products(*(side.values for side in every))
    images, texts = codes = gather(state, codes, batch.pairs)
    similarity = score_pairs(state, codes)
    try:
        if isinstance(loss, RetrievalLoss):
            terms = loss.terms(similarity, batch.relevance, image_ids=batch.image_ids)
        else:
            terms = {"loss": loss(similarity, batch.relevance, image_ids=batch.image_ids)}
    except ValueError as error:  # losses check their input, too
        if not similarity.isfinite().all():
            raise FloatingPointError("similarity") from error
        raise
    if batch.unimodal is not None:
        value = state.model.get_submodule("unimodal")(images.values, texts.values, *batch.unimodal)
        terms = {**terms, "unimodal": state.config.unimodal_weight * value}
    return terms, similarity.float().std()


def spread_of_products(images: Tensor, texts: Tensor) -> Tensor:
    """Standard deviation of ``images @ texts.T``, without that matrix.

    With the means taken out, ``v_i = v + a_i`` and ``t_j = t + b_j``, the mixed terms of the sum of squares are 0.

    Example:
        >>> images, texts = torch.eye(3)[:2], torch.eye(3)
        >>> bool(torch.isclose(spread_of_products(images, texts), (images @ texts.T).std()))
        True
    """
    image, text = images.mean(0), texts.mean(0)
    rows, columns = images - image, texts - text
    squares = ((rows.T @ rows) * (columns.T @ columns)).sum()
    squares = squares + len(texts) * (rows @ text).square().sum() + len(images) * (columns @ image).square().sum()
    return (squares.clamp(min=0) / (len(images) * len(texts) - 1)).sqrt()


class CachedCodes:
    """Codes of a batch, computed in micro batches without a graph; :meth:`backward` computes them again, with one.

    The loss of the whole batch gives the gradient of the codes. The gradient of the parameters is the sum over micro
    batches, so it equals that of the whole batch. Dropout draws the same numbers in both passes.

    Args:
        encode: Encodes images and captions.
        images: Images of the batch.
        texts: Captions of the batch.
        size: Pairs of a micro batch.

    Attributes:
        codes: The codes, which collect their gradient.

    Reference: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, RepL4NLP 2021.
    """

    def __init__(self, encode: Callable[[Padded, Padded], Codes], images: Padded, texts: Padded, size: int) -> None:
        rows = [slice(start, start + size) for start in range(0, len(images), size)]
        self._encode = encode
        self._parts = [(images.take(part), texts.take(part)) for part in rows]
        self._random: list[tuple[Tensor, Tensor | None]] = []
        found: list[Codes] = []
        with torch.no_grad():
            for part in self._parts:
                self._random.append(_random_state(images.values.device))
                found.append(encode(*part))
        sides = [torch.cat([side.values for side in codes]) for codes in zip(*found, strict=True)]
        self.codes: Codes = Padded(sides[0].requires_grad_()), Padded(sides[1].requires_grad_())

    def backward(self, no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        """Add the gradients of the parameters, from the gradient of :attr:`codes`.

        Args:
            no_sync: Keeps the processes from exchanging gradients; it is entered for all micro batches but the last.
        """
        device, start = self.codes[0].values.device, 0
        after = _random_state(device)
        for number, (part, random) in enumerate(zip(self._parts, self._random, strict=True), 1):
            rows = slice(start, start := start + len(part[0]))
            _set_random_state(device, random)
            with nullcontext() if number == len(self._parts) else no_sync():
                values, gradients = [], []
                for again, cached in zip(self._encode(*part), self.codes, strict=True):
                    if again.values.requires_grad and cached.values.grad is not None:  # not of a frozen side
                        values.append(again.values)
                        gradients.append(cached.values.grad[rows])
                torch.autograd.backward(values, gradients)
        _set_random_state(device, after)


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """State of torch's generators, on the CPU and on the device."""
    return torch.get_rng_state(), None if device.type == "cpu" else torch.get_device_module(device).get_rng_state()


def _set_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.get_device_module(device).set_rng_state(state[1])
