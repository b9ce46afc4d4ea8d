"""Settings of a search service."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServiceSettings:
    """How much a service takes on at a time."""

    cache: int = 1024
    """Texts whose vectors are remembered; 0 for none."""
    batch: int = 32
    """Texts that go through the model together, at most."""
    wait: float = 0.01
    """Seconds that the first text of a batch waits for others, where the batch before had several."""
    queue: int = 256
    """Texts that may wait; more are refused."""
    timeout: float = 10.0
    """Seconds after which a query is given up."""
    heavy: int = 2
    """Queries with pictures, or rankings by the whole model, that run at once."""
    rerank: int = 50
    """Results of the vectors that are ranked again, for models with cross attention; 0 for none."""
