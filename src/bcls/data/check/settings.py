"""What a check can be told."""

from dataclasses import dataclass

from bcls.data.images.decode import MAX_PIXELS


@dataclass(frozen=True)
class CheckSettings:
    """Flags of ``bcls data check``."""

    images: str | None = None
    """Where the pictures are now, if they have moved since the import."""
    workers: int = 0
    """Threads that read pictures; 0 for one a processor."""
    max_pixels: int = MAX_PIXELS
    """Pictures with more pixels are refused unread."""
    near: int = 4
    """Bits of 64 in which the hashes of two nearly equal pictures may differ, at most 8; -1 to leave that out."""
    strict: bool = False
    """Exit with 1 for notes as well."""
    json: bool = False
    """Print everything that was found as JSON."""
