"""Splits for a source that has none: some images are held out of training."""

import hashlib
from dataclasses import replace

from bcls._core.errors import check_number, fail
from bcls.data.write import Content


def hold_out(content: Content, share: float) -> Content:
    """Move a share of the images to ``val``, and as many to ``test``, with their captions.

    Which ones depends on the ids of the images alone: an import gives the same splits whenever and wherever it is run.

    Args:
        content: What an importer found, all of it in ``train``.
        share: Of the images, above 0 and below a half; at least one image goes to each split.

    Raises:
        ValueError: There are splits already, or too few images for three of them.
    """
    if check_number("--held_out", share, "a tenth is usual: 0.1", above=0) >= 0.5:
        fail("--held_out", "a share below 0.5", share, "a tenth is usual: 0.1")
    found = sorted({image.split for image in content.images})
    if found != ["train"]:
        fail("--held_out", "a source without splits of its own", f"{', '.join(found)}", "leave --held_out away")
    if len(content.images) < 3:
        fail("--held_out", "at least 3 images", len(content.images), "add some, or leave --held_out away")
    order = sorted((image.image_id for image in content.images), key=lambda one: hashlib.sha256(one.encode()).digest())
    count = min(max(1, round(share * len(order))), (len(order) - 1) // 2)
    held = dict.fromkeys(order[:count], "val") | dict.fromkeys(order[count : 2 * count], "test")
    return replace(
        content,
        images=tuple(image._replace(split=held.get(image.image_id, "train")) for image in content.images),
        captions=tuple(one._replace(split=held.get(one.image_id, "train")) for one in content.captions),
    )
