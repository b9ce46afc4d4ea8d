"""Loss and gradients of the batches of a step: encode, gather, score, loss, backward pass.

With ``micro_batch`` the memory of the encoders is that of a micro batch, and the loss still sees the whole batch, see
:func:`encode_in_parts`. With ``streaming`` the loss is computed from the embeddings, and neither the scores nor the
labels of the batch exist as a matrix.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bcls.losses import RetrievalLoss, StreamingBCLSLoss
from bcls.losses.base import total
from bcls.models.layers import Padded, unit
from bcls.training.distributed import average_gradients, gather_codes
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
    accelerator, micro, in_parts = state.accelerator, state.config.micro_batch, False
    # Every process computes the whole streaming loss, but only the gradient of its own codes.
    scale = accelerator.num_processes if isinstance(loss, StreamingBCLSLoss) else 1
    values: Terms = {}
    try:
        for number, batch in enumerate(batches):
            waits = number + 1 < len(batches)  # gradients are exchanged once, with the last batch
            in_parts = 0 < micro < max(sizes_of_ranks(batch.pairs, accelerator.num_processes))
            with accelerator.no_sync(state.parallel) if waits else nullcontext():
                codes = encode(state, batch.images, batch.texts, micro if in_parts else 0)
                terms, spread = terms_and_spread(state, loss, codes, batch)
                # As a sum that passes the same gradient on to all terms: the kernels of BCLS need not run again.
                accelerator.backward(total(terms) * (scale / len(batches)))
            for name, value in (*terms.items(), ("spread", spread)):
                share = value.detach() / len(batches)
                values[name] = values[name] + share if name in values else share
        if in_parts:  # DistributedDataParallel cannot: it would see the encoders run again in the backward pass
            average_gradients(state.model, accelerator.num_processes)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"`batch`: expected one that fits into the memory of {accelerator.device}, got {state.config.batch} pairs; "
            "lower --batch, set or lower --micro-batch, or use --precision bf16 or more processes"
        ) from error
    return values


def encode(state: TrainState, images: Padded, texts: Padded, micro: int = 0) -> Codes:
    """The codes of this process's images and captions, in the precision of the run; in micro batches if not 0."""
    with state.accelerator.autocast():
        if micro:
            return encode_in_parts(state.model, images, texts, micro)
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


def encode_in_parts(encode: Callable[[Padded, Padded], Codes], images: Padded, texts: Padded, size: int) -> Codes:
    """Encode micro batches and keep only their codes; the backward pass encodes each of them again.

    The gradient of the parameters is the sum over micro batches, so it equals that of the whole batch. Dropout draws
    the same numbers in both passes.

    Args:
        encode: Encodes images and captions.
        images: Images of the batch.
        texts: Captions of the batch.
        size: Pairs of a micro batch.

    Reference: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, RepL4NLP 2021.
    """

    def encode_part(images: Tensor, image_lengths: Tensor, texts: Tensor, text_lengths: Tensor) -> list[Tensor]:
        return [side.values for side in encode(Padded(images, image_lengths), Padded(texts, text_lengths))]

    found = []
    for start in range(0, len(images), size):
        parts = [side.take(slice(start, start + size)) for side in (images, texts)]
        # As tensors, from which torch finds the devices whose random numbers are drawn again.
        inputs = [tensor for part in parts for tensor in (part.values, part.lengths)]
        found.append(checkpoint(encode_part, *inputs, use_reentrant=False))
    first, second = (Padded(torch.cat(side)) for side in zip(*found, strict=True))
    return first, second
