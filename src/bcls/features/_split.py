"""One split of an extraction: its blocks, the rows that come back, and the end."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._checks import fail
from bcls._weights import sha256_of
from bcls.data import Dataset
from bcls.data.quarantine import read_quarantine
from bcls.features._plan import Plan, images_hash
from bcls.features._record import record_split
from bcls.features._store import SplitFile


class SplitWork:
    """What is left to do for a split.

    Args:
        part: The images of the split.
        split: Its name.
        folder: Folder of the features.
        plan: The extraction.
        size: Pictures in a block.

    Attributes:
        left: Numbers of the blocks that are not done.
        unreadable: Pictures that cannot be read and are not in quarantine, with the reason.
    """

    def __init__(self, part: Dataset, split: str, folder: Path, plan: Plan, size: int) -> None:
        self._part, self._split, self._plan, self._size = part, split, plan, size
        self._images = {"images": images_hash(part.image_ids)}
        depends = {**plan.settings, **plan.made_with, **self._images, "block": size}
        self._file = SplitFile(folder, split, (len(part.images) * plan.views, *plan.shape), depends)
        self._quarantined = read_quarantine(part.folder).images
        blocks = -(-len(part.images) // size)
        self.left = [number for number in range(blocks) if number not in self._file.done]
        self.unreadable: dict[str, str] = {}

    def block(self, number: int) -> tuple[str, ...]:
        """Ids of the pictures in a block."""
        return self._part.image_ids[number * self._size : (number + 1) * self._size]

    @property
    def zero_rows(self) -> list[str]:
        """Ids of quarantined pictures that cannot be read, whose rows are zero."""
        return [image_id for number in sorted(self._file.done) for image_id in self._file.done[number]]

    def take(self, number: int, rows: npt.NDArray[Any]) -> None:
        """Keep the rows of a block, unless one of its pictures can neither be read nor is in quarantine.

        Raises:
            ValueError: None of its pictures can be read.
        """
        ids = self.block(number)
        broken = [ids[row] for row in np.flatnonzero(np.isnan(rows).reshape(len(ids), -1).any(1))]
        reasons = {image_id: self._reason(image_id) for image_id in broken if image_id not in self._quarantined}
        if len(reasons) == len(ids) > 1:
            got = f"none of {len(ids)} ({next(iter(reasons.values()))})"
            fail("dataset", "pictures that can be read", got, "if they have moved, say where they are")
        self.unreadable |= reasons
        if not reasons:
            rows[np.repeat(np.isin(ids, broken), self._plan.views)] = 0
            self._file.write(number, number * self._size * self._plan.views, rows, broken)
            self.left.remove(number)

    def finish(self) -> None:
        """Give the file its name and record it, when all blocks are done."""
        if self.left:
            return
        self._file.finish()
        made = {
            "rows": len(self._part.images) * self._plan.views,
            "sha256": sha256_of(self._file.path),
            **self._images,
            **self._plan.made_with,
            "zero_rows": self.zero_rows,
        }
        plan = self._plan
        record_split(self._part.folder, plan.name, self._split, plan.settings, made, plan.views)
        self._file.forget()

    def _reason(self, image_id: str) -> str:
        try:
            self._part.read_image(image_id)
        except ValueError as error:
            return str(error)
        except OSError as error:
            return str(error.strerror or error)
        return "a worker could not read it, but this process can"
