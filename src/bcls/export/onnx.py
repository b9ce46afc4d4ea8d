"""Both towers of a model as ONNX files, checked against torch, in a folder that explains itself."""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bcls._checks import fail
from bcls._files import beside, replace_folder, write_whole
from bcls._padded import Padded
from bcls.export.inputs import TowerInputs, tower_inputs
from bcls.export.page import page
from bcls.export.towers import ImageTower, TextTower, run_tower, write_tower
from bcls.export.words import TOKENIZER, VOCABULARY, word_files
from bcls.models import name_of
from bcls.models.base import RetrievalModel
from bcls.models.batches import trimmed
from bcls.models.folder import CARD, CONFIG, is_replaceable, plain_config

#: Most that an entry of a unit vector may differ between onnxruntime and torch, both in float32 on the CPU.
TOLERANCE = 1e-4
_IMAGES, _TEXTS = "image.onnx", "text.onnx"
#: What an export is, and what may lie beside it: the weights of large towers have files of their own.
_FILES, _BESIDE = {_IMAGES, _TEXTS, CONFIG}, {CARD, TOKENIZER, VOCABULARY, f"{_IMAGES}.data", f"{_TEXTS}.data"}


@dataclass(frozen=True)
class Exported:
    """What was exported, and how well it agrees with torch."""

    model: str
    """The model's name in the registry."""
    width: int
    """Width of the vectors, D."""
    images: str
    """What ``image.onnx`` takes: ``pixels``, ``vectors`` or ``regions``."""
    image_shape: tuple[str | int, ...]
    """Shape of its input; letters are free."""
    text_files: tuple[str, ...]
    """Files that turn captions into token numbers; none where the model knows numbers only."""
    image_difference: float
    """Largest difference between an entry of an image vector from onnxruntime and from torch."""
    text_difference: float
    """The same for captions."""
    tolerance: float = TOLERANCE
    """What the two were allowed to be."""


def export_onnx(
    model: RetrievalModel, out: str | Path, *, images: Any = None, texts: Any = None, regions: bool = False
) -> Exported:
    """Write ``image.onnx``, ``text.onnx``, ``config.json``, the tokenizer or vocabulary, and a ``README.md``.

    Both towers are run by onnxruntime and by torch, on all check inputs together and on the first alone; the folder
    appears only when they agree to :data:`TOLERANCE`.

    Args:
        model: A model with one vector an item, ``vsepp`` or ``dual``.
        out: A new or empty folder, or an earlier export, which is replaced whole.
        images: Pictures or features for the check; some are made up where there are none.
        texts: Captions for the check; a few English ones where there are none.
        regions: The image tower takes regions ``(N, R, d)`` with lengths, not vectors; for models without a backbone.

    Raises:
        ValueError: The model has no two towers, ``out`` holds something else, or the two disagree.
        MissingExtraError: The packages of the extra ``onnx`` are not installed.
    """
    inputs = tower_inputs(model, images=images, texts=texts, regions=regions)
    folder = Path(out).absolute()
    if folder.exists() and not is_replaceable(folder, _FILES, _BESIDE, lambda told: "onnx" in told):
        expected = "a new or empty folder, or an earlier export and nothing else"
        fail("out", expected, str(out), "choose another name: nothing is overwritten")
    written: list[Exported] = []
    try:
        replace_folder(folder, lambda new: written.append(_write(new, model, inputs)))
    finally:
        shutil.rmtree(beside(folder)[0], ignore_errors=True)
    return written[0]


def _write(folder: Path, model: RetrievalModel, inputs: TowerInputs) -> Exported:
    differences = []
    for file, tower, given, name, encode in (
        (_IMAGES, ImageTower, inputs.images, "images", model.encode_images),
        (_TEXTS, TextTower, inputs.texts, "numbers", model.encode_texts),
    ):
        # Sizes of 1 would be taken for constants.
        write_tower(folder / file, model, tower, _doubled(given), name)
        checks = [trimmed(given.take(rows)) for rows in (slice(None), slice(0, 1))]
        differences.append(max(_difference(run_tower(folder / file, one, name), encode(one)) for one in checks))
        if not differences[-1] <= TOLERANCE:
            got = f"{differences[-1]:.2g} in {file}"
            fail("model", f"vectors that differ by {TOLERANCE:g} at most from torch's", got, "report it as a bug")
    files = word_files(model)
    for name, content in files.items():
        write_whole(folder / name, content)
    shape = inputs.images.values.shape
    kind = "pixels" if inputs.sees_pixels else "vectors" if len(shape) == 2 else "regions"
    free: tuple[str | int, ...] = ("N", "R") if kind == "regions" else ("N",)
    exported = Exported(
        model=name_of(model.config),
        width=_width(model),
        images=kind,
        image_shape=(*free, *shape[len(free) :]),
        text_files=tuple(files),
        image_difference=differences[0],
        text_difference=differences[1],
    )
    plain = {"onnx": asdict(exported), "config": plain_config(model)}
    write_whole(folder / CONFIG, json.dumps(plain, indent=2) + "\n")
    write_whole(folder / CARD, page(model, exported))
    for path in folder.iterdir():  # the towers were written by torch, which does not wait for the disk
        with path.open("rb") as written:
            os.fsync(written.fileno())
    return exported


def _doubled(items: Padded) -> Padded:
    values = items.values.repeat(2, *[1] * (items.values.ndim - 1))
    return Padded(values, None if items.lengths is None else items.lengths.repeat(2))


def _difference(one: Any, other: Any) -> float:
    return float((one - other).abs().max())


def _width(model: RetrievalModel) -> int:
    width: int = model.config.width  # type: ignore[attr-defined]
    return width
