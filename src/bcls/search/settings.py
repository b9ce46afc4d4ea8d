"""Settings of a search service."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServiceSettings:
    """How much a service takes on at a time."""

    cache: int = 1024
    """Texts whose vectors are remembered; 0 for none."""
    wait: float = 0.01
    """Seconds that the first text of a batch waits for others, where the batch before had several."""
    queue: int = 256
    """Texts that may wait; more are refused."""
    timeout: float = 10.0
    """Seconds after which a query is given up."""
    rerank: int = 50
    """Results of the vectors that are ranked again, for models with cross attention; 0 for none."""
