"""Captions that are empty, repeated or shared between splits, and images that have none."""

from collections.abc import Iterator

from bcls.data.check.findings import Finding
from bcls.data.dataset import Dataset

_LONG = 1000


def check_texts(dataset: Dataset) -> Iterator[Finding]:
    """Look at every caption."""
    captioned = {caption.image_id for caption in dataset.captions}
    for image in dataset.images:
        if image.image_id not in captioned:
            yield Finding("image-without-captions", image.image_id, f"in {image.split}")
    trained = {_plain(caption.text) for caption in dataset.captions if caption.split == "train"}
    seen: dict[tuple[str, str], str] = {}
    for caption in dataset.captions:
        text = _plain(caption.text)
        if not text:
            yield Finding("empty-caption", caption.caption_id, f"of image {caption.image_id}, {caption.text[:20]!r}")
            continue
        first = seen.setdefault((caption.image_id, text), caption.caption_id)
        if first != caption.caption_id:
            yield Finding("repeated-caption", caption.caption_id, f"the same text as {first}")
        if caption.split != "train" and text in trained:
            yield Finding("shared-caption", caption.caption_id, f"in {caption.split}: {caption.text[:80]!r}")
        if len(caption.text) > _LONG:
            yield Finding("long-caption", caption.caption_id, f"{len(caption.text)} characters")


def _plain(text: str) -> str:
    """The words alone: without case, outer punctuation and repeated spaces."""
    return " ".join(text.lower().split()).strip(" .!?,;:\"'-")
