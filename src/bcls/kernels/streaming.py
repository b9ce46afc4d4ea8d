"""BCLS from embeddings: similarities and labels exist a few rows at a time, so memory grows with B and not with B^2.

Exact, not an approximation: hard pairs and log-sum-exps are merged over tiles. The gradient of the continuous half is
a sparse product with at most 4 W B cells, that of the binary half makes the tiles once more.
"""

from typing import Any

import torch
from torch import Tensor

from bcls._core.errors import check_whole, fail
from bcls.kernels._entries import entries
from bcls.kernels._labels import LabelMaker, check_unit_rows, is_whole, reference_places
from bcls.kernels._once import only_once
from bcls.kernels._parts import Finished, Soft, Tile, merge, new_keys
from bcls.kernels._ranks import Share, share_of
from bcls.kernels.engines import engine_for
from bcls.kernels.matrix import Terms, gather
from bcls.kernels.settings import Halves, SoftNegatives, Windows
from bcls.kernels.values import check_tensor


def streaming_loss(
    images: Tensor,
    texts: Tensor,
    captions: Tensor,
    *,
    references: Tensor | None = None,
    reference_image: Tensor | None = None,
    image_ids: Tensor | None = None,
    soft: SoftNegatives | None = None,
    windows: Windows | None = None,
    group: "torch.distributed.ProcessGroup | None" = None,
    step: int | None = None,
) -> Terms:
    """Soft negatives and hard pairs of windows for ``s_ij = <images_i, texts_j>`` without the matrix.

    Labels are cosines of caption embeddings, ``r_ij = max over references k of image i of <k, captions_j>``, and
    exactly 1 for own pairs and pairs of one image.

    With a ``group`` each rank passes its own rows (as many as it has), and the loss is that of the whole batch: every
    rank gets the same value and the gradient of that value for its own rows. DistributedDataParallel divides gradients
    by the number of ranks: multiply the loss by it. All ranks must call backward.

    Args:
        images: ``(b, d)`` embeddings, unit rows for cosines.
        texts: ``(b, d)`` embeddings of the paired captions.
        captions: ``(b, D)`` label embeddings of these captions, unit rows.
        references: ``(K, D)`` label embeddings of the images' own captions, unit rows; ``captions`` without it.
        reference_image: ``(K,)`` row of ``images`` that each reference belongs to.
        image_ids: ``(b,)`` integers; pairs with equal ones are of one image. On all ranks or on none.
        soft: Settings of the binary half, or None to leave it out; ``scale`` is over the whole batch.
        windows: Settings of the continuous half, or None to leave it out.
        group: Ranks that share the batch; None for a batch that is whole.
        step: Rows of a tile; what suits the device without it.

    Raises:
        ValueError: If shapes, types or devices do not fit, an image has no reference, or, off CUDA, a row of
            ``captions`` or ``references`` is not of length 1; on CUDA a look at the values would wait.

    Example:
        >>> from bcls.kernels import SoftNegatives
        >>> eye = torch.eye(3)
        >>> streaming_loss(eye, eye, eye, soft=SoftNegatives(margin=1.0, gamma=1e4)).binary  # at the margin
        tensor(0.0004)
    """
    _check(images, texts, captions, references, reference_image, image_ids)
    if (references is None) != (reference_image is None):
        fail("reference_image", "given together with `references`", "one of them alone", "pass both or none")
    if references is None or reference_image is None:
        references, places = captions, torch.arange(len(images), device=images.device)[None]
    else:
        places = reference_places(reference_image, len(images))
        if references.shape != (len(reference_image), captions.shape[1]):
            expected = f"shape {(len(reference_image), captions.shape[1])}"
            fail("references", expected, tuple(references.shape), "embed them as `captions`, one for each owner")
    chosen = None if step is None else check_whole("step", step, least=1)
    if images.device.type != "cuda":
        check_unit_rows("captions", captions)
        if references is not captions:
            check_unit_rows("references", references)
    share = share_of(images, group)
    ids = None if image_ids is None else share.gather(image_ids)
    labels = LabelMaker(references.detach().float(), places, share.gather(captions.detach().float()), ids, share.first)
    return Terms(*_StreamingLoss.apply(images, texts, labels, share, Halves(soft, windows), chosen))  # type: ignore[no-untyped-call]


def _check(
    images: Tensor,
    texts: Tensor,
    captions: Tensor,
    references: Tensor | None,
    reference_image: Tensor | None,
    image_ids: Tensor | None,
) -> None:
    needed = {"images": images, "texts": texts, "captions": captions}
    optional = {"references": references, "reference_image": reference_image, "image_ids": image_ids}
    given = {argument: tensor for argument, tensor in optional.items() if tensor is not None}
    for argument, tensor in {**needed, **given}.items():
        check_tensor(argument, tensor)
        if tensor.device != images.device:
            fail(argument, f"a tensor on {images.device}, as `images`", tensor.device, "move it with .to(...)")
        if (argument in needed or tensor is references) and not tensor.is_floating_point():
            fail(argument, "embeddings of floating point numbers", tensor.dtype, "convert them with .float()")
    if images.ndim != 2 or len(images) == 0:
        fail("images", "embeddings (b, d), at least one row", f"shape {tuple(images.shape)}", "one row an image")
    if texts.shape != images.shape:
        fail("texts", f"the shape of `images`, {tuple(images.shape)}", tuple(texts.shape), "one row a caption")
    if captions.ndim != 2 or len(captions) != len(images):
        fail("captions", f"label embeddings, {len(images)} rows", tuple(captions.shape), "one row a caption")
    if image_ids is not None and (image_ids.shape != images.shape[:1] or not is_whole(image_ids)):
        got = f"shape {tuple(image_ids.shape)} of {image_ids.dtype}"
        fail("image_ids", f"{len(images)} integers", got, "one for each row of `images`")


class _StreamingLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, texts: Tensor, labels: LabelMaker, share: Share, asked: Halves, step: int | None
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(images.device.type, enabled=False):
            queries, mine = images.float(), texts.float()
            candidates, engine = share.gather(mine), engine_for(images.device)
            size, whole = len(queries), len(candidates)
            step = step or engine.step(whole, made=True)
            keys = new_keys(size, whole, asked.windows, images.device)
            sums: list[Soft | None] = []
            for first in range(0, size, step):
                tile = _tile(queries, candidates, labels, first, step)
                part = None if keys is None else keys._replace(rows=keys.rows[:, first : first + step])
                found = engine.mine(tile, part, asked)
                sums.append(None if found is None else Soft(merge(found.rows), merge(found.columns)))
            share.merge_keys(keys)
            own = (queries * mine).sum(1)
            finished = engine.finish(keys, share.merge_sums(gather(sums)), (own, share.gather(own)), asked)
            by_row, by_column = finished.values[:, :size], finished.values[:, size:]
            binary, continuous = (share.add(by_row.sum(1)) + by_column.sum(1)).unbind()
        ctx.save_for_backward(images, texts, *finished)
        ctx.settings = engine, labels, share, asked, step
        return binary, continuous

    @staticmethod
    def backward(ctx: Any, binary: Tensor, continuous: Tensor) -> tuple[Tensor | None, ...]:
        images, texts, *_ = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            gradients = _gradients(ctx.saved_tensors, ctx.settings, binary, continuous)
        return *(only_once(part, images, texts, binary, continuous) for part in gradients), *(None,) * 4


def _gradients(
    saved: tuple[Tensor, ...], settings: tuple[Any, ...], binary: Tensor, continuous: Tensor
) -> tuple[Tensor, Tensor]:
    images, texts, *parts = saved
    engine, labels, share, (soft, windows), step = settings
    finished, size = Finished(*parts), len(images)
    queries, candidates = images.float(), share.gather(texts.float())
    by_image, by_text = torch.zeros_like(queries), torch.zeros_like(candidates)
    if windows is not None:
        rows, columns, coefficients = entries(finished, windows, size, share.first)
        # Torch warns where nobody says whether cells are to be checked, in some versions even of a product.
        with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
            cells, values = torch.stack((rows, columns)), coefficients * continuous.float()
            pairs = torch.sparse_coo_tensor(cells, values, (size, len(candidates))).coalesce()
            by_image += torch.sparse.mm(pairs, candidates)
            by_text += torch.sparse.mm(pairs.t(), queries)
    if soft is not None:
        by_row, by_column = finished.levels[:size], finished.levels[size:]
        for first in range(0, size, step):
            tile = _tile(queries, candidates, labels, first, step)
            slope = engine.slope(tile, (by_row[first : first + step], by_column), binary, soft)
            by_image[first : first + step].addmm_(slope, candidates)
            by_text.addmm_(slope.T, queries[first : first + step])
    mine = share.add(by_text)[share.first : share.first + size]
    return by_image.to(images.dtype), mine.to(texts.dtype)


def _tile(queries: Tensor, candidates: Tensor, labels: LabelMaker, first: int, step: int) -> Tile:
    stop = min(first + step, len(queries))
    similarity = queries[first:stop] @ candidates.T
    return Tile(similarity, labels.rows(first, stop), labels.image_ids, labels.first + first)
