"""Flags of ``bcls index``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class IndexSettings:
    """Settings of ``bcls index``."""

    out: str
    """Folder of the index; made new, or brought up to date."""
    model: str | None = None
    """Name or folder of a model; the index's own, or photo for a new index."""
    engine: str | None = None
    """What holds the vectors: faiss (inside the folder, the default) or milvus."""
    uri: str | None = None
    """For milvus: a file such as photos.db, or the address of a server."""
    features: str | None = None
    """Name of the dataset's features, for a model that reads features and no pictures."""
    captions: bool = True
    """Read captions: those of a dataset, and .txt and .json files beside the photos."""
    workers: int = 0
    """Threads that read and decode pictures; 0 for one a core."""
    max_pixels: int = 80_000_000
    """Pictures with more pixels are skipped."""
    device: str = "cpu"
    """Where the model runs, such as cuda."""
    precision: str = "float32"
    """Of the networks that see photos: float32, or bfloat16, twice as fast on processors that have it in hardware."""
    json: bool = False
    """Print what was done as JSON."""
