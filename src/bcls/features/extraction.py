"""One split of an extraction: its blocks, the rows that come back, and the end.

Features of every picture of a dataset, in blocks that are done or not.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls._core.extras import sha256_of
from bcls._core.progress import progress
from bcls.data.dataset import Dataset
from bcls.data.records import read_quarantine
from bcls.features.arrays import (
    FeatureSettings,
    Plan,
    SplitFile,
    alone,
    enter,
    finished_splits,
    images_hash,
    make_plan,
    record_split,
)
from bcls.features.jobs import run_blocks, torch_threads


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


#: Pictures in a block: what is lost when the process is killed.
BLOCK = 256


@dataclass(frozen=True)
class Extraction:
    """What came of an extraction.

    Attributes:
        name: Name of the features, for :meth:`bcls.data.Dataset.features`.
        folder: Where they lie.
        shapes: Shape of the array of each split that is finished, now or before.
        views: Rows of a picture in it: the whole picture, and random views behind it where they were asked for.
        already: Splits that were finished before.
        unreadable: Pictures that cannot be read, by id, with the reason. Their splits are not finished.
        zero_rows: Ids of quarantined pictures that cannot be read, whose rows are zero.
    """

    name: str
    folder: Path
    shapes: dict[str, tuple[int, ...]]
    views: int
    already: tuple[str, ...]
    unreadable: dict[str, str]
    zero_rows: tuple[str, ...]


def extract(dataset: Dataset, settings: FeatureSettings | None = None) -> Extraction:
    """Extract features of a dataset's pictures into its folder.

    They are stored as ``features/<name>/<split>.npy``, float16, ``(N, R, D)`` or ``(N, D)``, beside a
    ``manifest.json`` that says what made them, and are entered in the dataset's manifest: open the dataset again and
    ask for ``features(name)``. An extraction that was broken off goes on where it was and ends with the same bytes.

    With ``views`` random views there are ``(1 + views) N`` rows, the whole picture's before those of its views. What
    reads features sees whole pictures; training draws one of the rows for each caption.

    A picture that cannot be read keeps its split from being finished, unless ``bcls data check`` has put it into
    quarantine: then its row is zero, is listed as such in ``manifest.json``, and training skips it.

    Args:
        dataset: The dataset, with all images of its splits.
        settings: How; the defaults of :class:`FeatureSettings` when left out.

    Returns:
        What was done.

    Raises:
        ValueError: A setting is wrong, differs from that of a broken-off or finished extraction of this name, or no
            picture at all can be read.
        MissingExtraError: A package that the backbone or engine needs is not installed.
        OSError: The features cannot be written.
    """
    settings = settings or FeatureSettings()
    plan = make_plan(dataset, settings)
    folder = dataset.folder / "features" / plan.name
    work: dict[str, SplitWork] = {}
    zero: dict[str, list[str]] = {}
    with alone(folder):
        finished = finished_splits(folder, plan.settings)
        for split in plan.splits:
            part = dataset.split(split)
            if split in finished and (folder / f"{split}.npy").exists():
                _check_same(folder, split, finished[split], part)
                enter(dataset.folder, plan.name, split, plan.views)
                zero[split] = finished[split]["zero_rows"]
            else:
                _check_free(dataset, plan.name, split)
                work[split] = SplitWork(part, split, folder, plan, BLOCK)
        _work(list(work.values()), plan, settings)
    finished_now = [split for split in plan.splits if split not in work or not work[split].left]
    zero |= {split: one.zero_rows for split, one in work.items()}
    return Extraction(
        plan.name,
        folder,
        {split: (dataset.splits[split][0] * plan.views, *plan.shape) for split in finished_now},
        plan.views,
        tuple(split for split in plan.splits if split not in work),
        {image_id: reason for one in work.values() for image_id, reason in one.unreadable.items()},
        tuple(image_id for split in plan.splits for image_id in zero[split]),
    )


def _work(splits: list[SplitWork], plan: Plan, settings: FeatureSettings) -> None:
    """Do the blocks that are left, and show how far they are."""
    todo = [(split, number) for split in splits for number in split.left]
    blocks = [split.block(number) for split, number in todo]
    results = run_blocks(
        blocks,
        plan.start,
        engine=settings.engine,
        address=settings.address,
        workers=settings.workers,
        threads=1,
        gpus=0.0 if plan.made_with["device"] == "cpu" else 1.0,
    )
    for split in splits:  # what was killed before it could say that it is finished
        split.finish()
    if not todo:
        return
    total, done, started = sum(map(len, blocks)), 0, time.monotonic()
    # Lanes work on while a block is written, so the number of threads must hold for all that time.
    with torch_threads(1), closing(results), progress(f"features {plan.name}", total) as step:
        for place, rows in results:
            split, number = todo[place]
            split.take(number, rows)
            split.finish()
            done += len(blocks[place])
            step(done, f"{done / (time.monotonic() - started):.1f} a second")


def _check_same(folder: Path, split: str, made: dict[str, Any], part: Dataset) -> None:
    if made["images"] != images_hash(part.image_ids):
        fail(
            str(folder),
            f"features of the images that split {split!r} has now",
            "features of others",
            "remove that folder, or choose another name",
        )


def _check_free(dataset: Dataset, name: str, split: str) -> None:
    file = dataset.manifest.features.get(name, {}).get(split)
    if file is not None and file.path != f"features/{name}/{split}.npy":
        fail("name", "a name of its own", f"{name!r}, which {file.path} has", "choose another")
