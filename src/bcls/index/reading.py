"""Photos on their way to the model: read, hashed, decoded and prepared by threads, a bounded number ahead."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bcls._checks import visible
from bcls.data.images import decode
from bcls.index.camera import Notes, read_notes
from bcls.index.catalog import Facts
from bcls.index.embedding import BATCH, prepare
from bcls.index.source import Item, Source

if TYPE_CHECKING:
    from bcls._padded import Padded
    from bcls.models.base import RetrievalModel


@dataclass(frozen=True)
class Ready:
    """A photo that was read.

    Attributes:
        item: Which.
        facts: What is known about it, or ``None`` if it cannot be read.
        captions: What is written about it.
        known: Number of a photo in the index with the same contents, whose vector can be used again.
        prepared: What the model takes, where the vector is not known.
        problem: Why it cannot be read.
    """

    item: Item
    facts: Facts | None = None
    captions: tuple[str, ...] = ()
    known: int | None = None
    prepared: "Padded | None" = None
    problem: str = ""


def read_ahead(
    items: Iterable[Item],
    source: Source,
    model: "RetrievalModel",
    known: Callable[[str, str], int | None],
    *,
    workers: int,
    max_pixels: int,
) -> Generator[Ready]:
    """Read photos in order, some ahead of the one that is asked for.

    Args:
        items: The photos.
        source: Where they are.
        model: Says how pictures are prepared.
        known: Number of a photo with given contents that has a vector, if any; that of the given name first.
        workers: Threads; 0 for one a core.
        max_pixels: Pictures with more are refused.

    Yields:
        One for each item, in order.
    """
    count = workers or os.cpu_count() or 1
    pool = ThreadPoolExecutor(count, thread_name_prefix="bcls-read")
    waiting: deque[Future[Ready]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(_read, item, source, model, known, max_pixels))
            # Two batches ahead keep the model busy; what is prepared is small, and each thread holds one whole picture.
            if len(waiting) >= 2 * BATCH + count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _read(
    item: Item, source: Source, model: "RetrievalModel", known: Callable[[str, str], int | None], max_pixels: int
) -> Ready:
    try:
        content = source.read(item.name)
        sha256 = hashlib.sha256(content).hexdigest()
        features = source.features([item.name])
        notes = read_notes(content) if features is None else Notes()
        taken = notes.date is not None
        date = notes.date if notes.date is not None else source.date(item.name)
        facts = Facts(item.name, item.look, sha256, date, taken, notes.latitude, notes.longitude)
        captions = source.captions(item.name)
        same = known(item.name, sha256)
        if same is not None:
            return Ready(item, facts, captions, known=same)
        given = [decode(content, item.name, max_pixels=max_pixels)] if features is None else features
        return Ready(item, facts, captions, prepared=prepare(model, given))
    except (ValueError, MemoryError) as error:
        return Ready(item, problem=" ".join(str(error).split()) or "too large for the memory")
    except OSError as error:
        return Ready(item, problem=visible(f"`{item.name}`: {error.strerror or error}"))
