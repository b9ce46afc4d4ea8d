"""How much memory something takes."""

import tracemalloc
from contextlib import contextmanager


@contextmanager
def below(most):
    """Fails where Python takes ``most`` bytes or more on the way."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
