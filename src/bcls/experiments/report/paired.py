"""Whether two rows differ on the same queries, all seeds together."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail
from bcls.assess.arrays import read_npz
from bcls.evaluation import paired_test
from bcls.experiments.report.blocks import Cell, Table
from bcls.experiments.report.summary import Summary, SummaryRow
from bcls.experiments.results import RANKS

_KS = (1, 5, 10)


def compare_rows(folder: Path, a: SummaryRow, b: SummaryRow, kind: str) -> dict[str, float] | None:
    """Test the difference of two rows' RSUM, image by image.

    The share of an image in RSUM is averaged over the seeds that both rows have, and the images with their captions
    are what is exchanged and drawn; see :func:`bcls.evaluation.paired_test`.

    Args:
        folder: Of the sweep.
        a: One row.
        b: The other.
        kind: ``"test"`` or ``"validation"``.

    Returns:
        ``difference``, a less b, with ``difference_low``, ``difference_high``, ``p_value`` and ``seeds``; ``None``
        where the ranks of no common seed are there.
    """
    pairs = []
    for seed in sorted(a.keys.keys() & b.keys.keys()):
        files = [folder / RANKS / f"{row.keys[seed]}-{kind}.npz" for row in (a, b)]
        if all(file.is_file() for file in files):
            pairs.append([_shares(file) for file in files])
            shapes = {len(shares) for pair in pairs for shares in pair}
            if len(shapes) > 1:
                got = f"{' and '.join(map(str, sorted(shapes)))} images"
                fail(str(files[0].parent), "ranks of the same images in each file", got, "copy the ranks again")
    if not pairs:
        return None
    means = np.mean(pairs, axis=0)
    return {**paired_test(means[0], means[1]), "seeds": float(len(pairs))}


def paired_table(summary: Summary, against: SummaryRow) -> Table | None:
    """A row against every other of its sweep; nothing where there are no ranks."""
    rows: list[list[str]] = []
    for row in summary.rows:
        if row.name == against.name:
            continue
        test = compare_rows(summary.folder, against, row, summary.split)
        if test is not None:
            interval = f"{test['difference_low']:+.1f} to {test['difference_high']:+.1f}"
            rows.append(
                [row.name, f"{test['difference']:+.1f}", interval, f"{test['p_value']:.4f}", f"{test['seeds']:.0f}"]
            )
    if not rows:
        return None
    return Table(
        [f"RSUM of {against.name} less that of", "difference", "95 % interval", "p", "seeds"],
        [[Cell(text) for text in row] for row in rows],
    )


def _are_ranks(i2t: NDArray[Any], t2i: NDArray[Any], owner: NDArray[Any]) -> bool:
    flat = all(array.ndim == 1 and array.dtype.kind in "iu" and array.size for array in (i2t, t2i, owner))
    inside = flat and len(t2i) == len(owner) and 0 <= int(owner.min()) <= int(owner.max()) < len(i2t)
    return inside and bool((i2t > 0).any())


def _shares(file: Path) -> NDArray[np.float64]:
    """Split RSUM among the images that are queries, so that its mean over them is RSUM."""
    i2t, t2i, owner = read_npz(file, ("i2t", "t2i", "owner"))
    if not _are_ranks(i2t, t2i, owner):
        got = ", ".join(f"{array.dtype} of shape {array.shape}" for array in (i2t, t2i, owner))
        fail(str(file), "ranks of images, ranks of captions and the image of each caption", got, "copy the file again")
    asked = i2t > 0
    hits = np.sum([i2t[asked] <= k for k in _KS], axis=0)
    found = np.bincount(owner, np.sum([t2i <= k for k in _KS], axis=0), minlength=len(i2t))[asked]
    shares: NDArray[np.float64] = 100.0 * (hits + found * (np.count_nonzero(asked) / len(owner)))
    return shares
