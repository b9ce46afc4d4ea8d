"""BCLS from embeddings: similarities and labels exist for a few rows at a time, so memory grows with B, not with B^2.

The result is exact: hard pairs and log-sum-exps are merged over tiles. The gradient of the continuous term is a sparse
product with at most 4 W B cells; that of the binary term computes the tiles a second time.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

import bcls.losses.passes as passes
from bcls._core.errors import check_number, check_whole, fail
from bcls.losses.backends import engine_for
from bcls.losses.base import Reduction, reduce, total
from bcls.losses.definitions import ROUNDING, LossSettings, check_tensor, is_integer, sliding_windows
from bcls.losses.triplet import LogSumExp, TripletSoftLoss


class StreamingBCLSLoss(nn.Module):
    r""":class:`bcls.losses.BCLSLoss` computed from embeddings, without the similarity and relevance matrices.

    .. math:: \mathcal{L} = \mathcal{L}_{T\text{-}SN} + \lambda \, \mathcal{L}_{K\text{-}SW\text{-}HS}

    with :math:`s_{ij} = \langle v_i, t_j \rangle` for the embeddings of images and captions, and labels from caption
    embeddings of a text encoder: :math:`r_{ij}` is the maximum of :math:`\langle e_k, e_j \rangle` over the reference
    captions k of image i, and exactly 1 for matching pairs and pairs of the same image. Use it for batches whose
    ``(B, B)`` matrices do not fit into memory, or that are spread over several processes.

    Args:
        alpha: Width of the windows, as in :class:`bcls.losses.KendallWindowLoss`.
        beta: Stride of the windows, above 0.
        gamma: Hardness of the soft negatives, as in :class:`bcls.losses.TripletSoftLoss`.
        margin: Margin of the soft negatives.
        weight: :math:`\lambda`, the weight of the continuous term.
        lse: ``"sum"`` as in the paper or ``"mean"``, see :class:`bcls.losses.TripletSoftLoss`.
        reduction: ``"sum"`` as in the equations of the paper, ``"mean"`` divides by the size of the whole batch.
        group: Processes that share the batch, each of which passes its own rows (their number may differ); None if
            this process has the whole batch. Every process gets the value of the whole batch and the gradient of that
            value for its own rows. DistributedDataParallel divides gradients by the number of processes: multiply the
            loss by it. All processes must call backward.
        step: Rows of a tile; chosen for the device by default.

    Inputs:
        +---------------------+------------+--------------------------------------------------------------------+
        | ``images``          | ``(b, d)`` | image embeddings, unit rows for cosines                            |
        +---------------------+------------+--------------------------------------------------------------------+
        | ``texts``           | ``(b, d)`` | embeddings of the matching captions                                |
        +---------------------+------------+--------------------------------------------------------------------+
        | ``captions``        | ``(b, D)`` | label embeddings of these captions, unit rows                      |
        +---------------------+------------+--------------------------------------------------------------------+
        | ``references``      | ``(K, D)`` | label embeddings of all captions of the images; default `captions` |
        +---------------------+------------+--------------------------------------------------------------------+
        | ``reference_image`` | ``(K,)``   | row of ``images`` that each reference belongs to                   |
        +---------------------+------------+--------------------------------------------------------------------+
        | ``image_ids``       | ``(b,)``   | optional integers; pairs with equal ids are of the same image      |
        +---------------------+------------+--------------------------------------------------------------------+

    With a group, ``image_ids`` are given on all processes or on none.

    Raises:
        ValueError: If an argument or an input is wrong, an image has no reference, or, except on CUDA, a row of
            ``captions`` or ``references`` does not have length 1; on CUDA, checking the values would wait.

    Example:
        >>> from bcls.losses import BCLSLoss
        >>> generator = torch.Generator().manual_seed(0)
        >>> images, texts, captions = (
        ...     torch.nn.functional.normalize(torch.randn(8, 16, generator=generator), dim=1) for _ in range(3)
        ... )
        >>> loss = StreamingBCLSLoss()
        >>> sorted(loss.terms(images, texts, captions))
        ['binary', 'continuous']
        >>> expected = BCLSLoss()(images @ texts.T, captions @ captions.T)
        >>> torch.testing.assert_close(loss(images, texts, captions), expected)

    Reference: BCLS (Li et al., 2022).
    """

    def __init__(
        self,
        alpha: float = 0.2,
        beta: float = 0.1,
        gamma: float = 50.0,
        margin: float = 0.2,
        weight: float = 1.0,
        lse: LogSumExp = "sum",
        reduction: Reduction = "mean",
        *,
        group: "dist.ProcessGroup | None" = None,
        step: int | None = None,
    ) -> None:
        super().__init__()
        self.reduction: Reduction = reduction
        self.weight = check_number("weight", weight, "the paper uses 1", low=0)
        self.soft = TripletSoftLoss(margin, gamma, lse, reduction).settings(1)
        self.windows = sliding_windows(alpha, beta, scale=self.weight)
        self.group = group
        self.step = None if step is None else check_whole("step", step, least=1)

    def extra_repr(self) -> str:
        """The settings, for ``print(loss)``."""
        lse = "mean" if self.soft.average else "sum"
        return (
            f"alpha={self.windows.alpha}, beta={self.windows.beta}, gamma={self.soft.gamma}, "
            f"margin={self.soft.margin}, weight={self.weight}, lse={lse!r}, reduction={self.reduction!r}"
        )

    def terms(
        self,
        images: Tensor,
        texts: Tensor,
        captions: Tensor,
        *,
        references: Tensor | None = None,
        reference_image: Tensor | None = None,
        image_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """``binary`` and ``continuous``, already weighted; they sum to the loss."""
        _check(images, texts, captions, references=references, reference_image=reference_image, image_ids=image_ids)
        if (references is None) != (reference_image is None):
            fail("reference_image", "both `references` and `reference_image`", "one of them", "pass both or none")
        if references is None or reference_image is None:
            references, places = captions, torch.arange(len(images), device=images.device)[None]
        else:
            places = reference_places(reference_image, len(images))
            if references.shape != (len(reference_image), captions.shape[1]):
                expected, hint = f"shape {(len(reference_image), captions.shape[1])}", "encode them like `captions`"
                fail("references", expected, tuple(references.shape), f"{hint}, one row per reference")
        check_unit_rows("captions", captions)
        check_unit_rows("references", references)
        share = share_of(images, self.group)
        ids = None if image_ids is None else share.gather(image_ids)
        everyone = share.gather(captions.detach().float())
        labels = LabelMaker(references.detach().float(), places, everyone, ids, share.first)
        settings = labels, share, self.soft, self.windows, self.step
        terms = _StreamingLoss.apply(images, texts, settings)  # type: ignore[no-untyped-call]
        binary, continuous = (reduce(term, sum(share.sizes), self.reduction) for term in terms)
        return {"binary": binary, "continuous": continuous}

    def forward(self, images: Tensor, texts: Tensor, captions: Tensor, **inputs: Tensor | None) -> Tensor:
        """The loss, a differentiable scalar."""
        return total(self.terms(images, texts, captions, **inputs))


def _check(images: Tensor, texts: Tensor, captions: Tensor, **optional: Tensor | None) -> None:
    given = {argument: tensor for argument, tensor in optional.items() if tensor is not None}
    for argument, tensor in {"images": images, "texts": texts, "captions": captions, **given}.items():
        check_tensor(argument, tensor)
        if tensor.device != images.device:
            fail(argument, f"a tensor on {images.device}, as `images`", tensor.device, "move it with .to(...)")
        if argument not in {"reference_image", "image_ids"} and not tensor.is_floating_point():
            fail(argument, "embeddings of floating point numbers", tensor.dtype, "convert them with .float()")
    if images.ndim != 2 or len(images) == 0:
        fail("images", "embeddings (b, d), at least one row", f"shape {tuple(images.shape)}", "pass one row per image")
    if texts.shape != images.shape:
        fail("texts", f"the shape of `images`, {tuple(images.shape)}", tuple(texts.shape), "pass one row per caption")
    if captions.ndim != 2 or len(captions) != len(images):
        fail("captions", f"label embeddings, {len(images)} rows", tuple(captions.shape), "pass one row per caption")
    image_ids = given.get("image_ids")
    if image_ids is not None and (image_ids.shape != images.shape[:1] or not is_integer(image_ids)):
        got = f"shape {tuple(image_ids.shape)} of {image_ids.dtype}"
        fail("image_ids", f"{len(images)} integers", got, "pass one for each row of `images`")


class _StreamingLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, texts: Tensor, settings: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        labels, share, soft, windows, step = settings
        with torch.autocast(images.device.type, enabled=False):
            queries, mine = images.float(), texts.float()
            candidates, engine = share.gather(mine), engine_for(images.device)
            size, whole = len(queries), len(candidates)
            step = step or engine.step(whole)
            keys = passes.new_keys(size, whole, windows, images.device)
            sums = []
            for first in range(0, size, step):
                tile = _tile(queries, candidates, labels, first, step)
                engine.mine(tile, keys.of_rows(first, step), windows)
                sums.append([passes.merge(side) for side in engine.sums(tile, soft)])
            by_row, by_column = zip(*sums, strict=True)
            merged = share.merge_sums(passes.SoftSums(torch.cat(by_row, 2), torch.cat(by_column, 1)))
            share.all_reduce(keys.columns, "MAX")  # keys of rows are complete on their process
            own = (queries * mine).sum(1)
            results = engine.finish(keys, merged, (own, share.gather(own)), LossSettings(soft, windows))
            mine_only, others = results.values[:, :size].sum(1), results.values[:, size:].sum(1)
            binary, continuous = (share.all_reduce(mine_only) + others).unbind()
        ctx.save_for_backward(images, texts, *results)
        ctx.settings = engine, labels, share, soft, windows, step
        return binary, continuous

    @staticmethod
    def backward(ctx: Any, binary: Tensor, continuous: Tensor) -> tuple[Tensor | None, ...]:
        images, texts, *_ = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            gradients = _gradients(ctx.saved_tensors, ctx.settings, binary, continuous)
        return *(passes.forbid_double_backward(one, images, texts, binary, continuous) for one in gradients), None


def _gradients(
    saved: tuple[Tensor, ...], settings: tuple[Any, ...], binary: Tensor, continuous: Tensor
) -> tuple[Tensor, Tensor]:
    images, texts, *parts = saved
    engine, labels, share, soft, windows, step = settings
    results, size = passes.AnchorResults(*parts), len(images)
    queries, candidates = images.float(), share.gather(texts.float())
    by_image, by_text = torch.zeros_like(queries), torch.zeros_like(candidates)
    rows, columns, coefficients = passes.gradient_entries(results, windows, size, share.first)
    # Some versions of torch warn if it is not stated whether cells are checked, even for a product.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        cells, values = torch.stack((rows, columns)), coefficients * continuous.float()
        pairs = torch.sparse_coo_tensor(cells, values, (size, len(candidates))).coalesce()
        by_image += torch.sparse.mm(pairs, candidates)
        by_text += torch.sparse.mm(pairs.t(), queries)
    by_row, by_column = results.levels[:size], results.levels[size:]
    for first in range(0, size, step):
        tile = _tile(queries, candidates, labels, first, step)
        slope = engine.slope(tile, (by_row[first : first + step], by_column), binary, soft)
        by_image[first : first + step].addmm_(slope, candidates)
        by_text.addmm_(slope.T, queries[first : first + step])
    mine = share.all_reduce(by_text)[share.first : share.first + size]
    return by_image.to(images.dtype), mine.to(texts.dtype)


def _tile(queries: Tensor, candidates: Tensor, labels: "LabelMaker", first: int, step: int) -> passes.Tile:
    stop = min(first + step, len(queries))
    similarity = queries[first:stop] @ candidates.T
    return passes.Tile(similarity, labels.rows(first, stop), labels.image_ids, labels.first + first)


class LabelMaker(NamedTuple):
    """Computes labels a few rows at a time: ``r_ij = max over references k of image i of <k, j>``."""

    references: Tensor  #: (K, D) float32
    places: Tensor  #: (P, b), indices of the references of each image of this process, padded with the first one
    captions: Tensor  #: (B, D) float32, of all processes
    image_ids: Tensor | None  #: (B,)
    first: int  #: index of the first image of this process in the whole batch

    def rows(self, start: int, stop: int) -> Tensor:
        """Labels of some images of this process and all captions, ``(stop - start, B)``, in [-1, 1].

        Matching pairs and pairs of the same image are exactly 1.
        """
        labels = self.references[self.places[0, start:stop]] @ self.captions.T
        for place in self.places[1:, start:stop]:
            torch.maximum(labels, self.references[place] @ self.captions.T, out=labels)
        labels.clamp_(-1, 1).diagonal(self.first + start).fill_(1)
        if self.image_ids is not None:
            mine = self.image_ids[self.first + start : self.first + stop]
            labels.masked_fill_(mine[:, None] == self.image_ids, 1)
        return labels


def check_unit_rows(argument: str, rows: Tensor) -> None:
    """Check that label embeddings have length 1, so that their products are cosines; not on CUDA, where it would wait.

    Args:
        argument: Name of the argument, for the message.
        rows: ``(K, D)`` floating point.

    Raises:
        ValueError: If a row is not finite or does not have length 1; the message names the first one.

    Example:
        >>> check_unit_rows("captions", 2 * torch.eye(2))
        Traceback (most recent call last):
        ...
        ValueError: `captions`: expected rows of length 1, got length 2 in row 0; divide each row by its length
    """
    lengths = rows.detach().float().norm(dim=1)
    # Rounding to half precision changes the length of a row by up to the precision of one number.
    odd = ~((lengths - 1).abs() <= max(ROUNDING, torch.finfo(rows.dtype).eps))  # also true for NaN
    if not rows.is_cuda and bool(odd.any()):
        row = int(odd.int().argmax())
        hint = "divide each row by its length" if lengths[row].isfinite() else "check for an empty caption"
        fail(argument, "rows of length 1", f"length {float(lengths[row]):g} in row {row}", hint)


def reference_places(reference_image: Tensor, images: int) -> Tensor:
    """Indices of the references of each image, ``(P, images)``, if an image has at most P of them.

    Args:
        reference_image: ``(K,)`` row of the image that each reference belongs to.
        images: Number of images.

    Raises:
        ValueError: If a number is out of range or an image has no reference.

    Example:
        >>> reference_places(torch.tensor([1, 0, 1]), 2)
        tensor([[1, 0],
                [1, 2]])
    """
    if reference_image.ndim != 1 or not is_integer(reference_image):
        got = f"shape {tuple(reference_image.shape)} of {reference_image.dtype}"
        fail("reference_image", "integers (K,), one for each reference", got, "number the images of this batch from 0")
    owner = reference_image.long()
    low, high = (int(owner.min()), int(owner.max())) if len(owner) else (0, -1)
    if low < 0 or high >= images:
        got = f"{low} to {high}"
        fail("reference_image", f"numbers from 0 to {images - 1}", got, "number the images of this batch from 0")
    counts = owner.bincount(minlength=images)
    if int(counts.min()) == 0:
        missing = int(counts.argmin())
        fail("reference_image", "a reference for every image", f"none for image {missing}", "add its own caption")
    order = owner.argsort(stable=True)
    place = torch.arange(int(counts.max()), device=owner.device)[:, None]
    return order[counts.cumsum(0) - counts + torch.minimum(place, counts - 1)]


class BatchShare(NamedTuple):
    """The rows of one process in a batch that several processes share; they follow those of the processes before."""

    group: "dist.ProcessGroup | None"  #: None if this process has the whole batch
    sizes: tuple[int, ...]  #: number of rows of each process
    first: int  #: index of the first row of this process in the whole batch

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in order."""
        if self.group is None:
            return rows
        # all_gather needs equal shapes, and the sizes may differ.
        padded = rows.new_zeros((max(self.sizes), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in self.sizes]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat([part[:size] for part, size in zip(parts, self.sizes, strict=True)])

    def all_reduce(self, tensor: Tensor, operation: str = "SUM") -> Tensor:
        """Sum or maximum over processes, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, getattr(dist.ReduceOp, operation), group=self.group)
        return tensor

    def merge_sums(self, sums: passes.SoftSums) -> passes.SoftSums:
        """Soft sums of the columns over processes."""
        if self.group is None:
            return sums
        top, total, count = passes.merge(sums.columns).unbind()
        highest = self.all_reduce(top.clone(), "MAX")
        total = total * (top - highest.masked_fill(highest == -torch.inf, 0)).exp2()
        return sums._replace(columns=torch.stack((highest, self.all_reduce(total), self.all_reduce(count))))


def share_of(rows: Tensor, group: "dist.ProcessGroup | None") -> BatchShare:
    """The share of this process."""
    if group is None:
        return BatchShare(None, (len(rows),), 0)
    mine = torch.tensor([len(rows)], device=rows.device)
    sizes = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, mine, group=group)
    numbers = tuple(int(size) for size in sizes)
    return BatchShare(group, numbers, sum(numbers[: dist.get_rank(group)]))
