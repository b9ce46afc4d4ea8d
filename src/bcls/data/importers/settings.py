"""What an import can be told."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ImportSettings:
    """Flags of ``bcls data import``."""

    out: str
    """Folder for the dataset, new or empty; for butd, the dataset that gets the features."""
    images: str | None = None
    """Folder, zip or tar with the pictures."""
    captions: str | None = None
    """File with the captions, where it is not found in the source folder (folder)."""
    name: str | None = None
    """Name of the dataset; taken from the source when left out."""
    split: str | None = None
    """Split of everything that is imported, where the source does not say (folder, coco, webdataset)."""
    held_out: float | None = None
    """Share of the images for `val`, and as many for `test`, drawn where the source has no splits (folder, coco,
    webdataset, huggingface)."""
    restval: str = "train"
    """Split that COCO's `restval` images go to (karpathy)."""
    image_column: str | None = None
    """Column or key with the image's file name (folder, huggingface)."""
    caption_column: str | None = None
    """Column or key with the caption (folder, huggingface)."""
    encoding: str = "utf-8"
    """Encoding of text files (folder, scan)."""
    copy: bool = False
    """Copy pictures and features into the dataset's folder; without it they stay where they are."""
    json: bool = False
    """Print what was imported as JSON."""
