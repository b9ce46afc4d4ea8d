"""Files that turn captions into token numbers without this package.

A trained model as the folder that the Hub takes.

The page that goes with exported towers: how to use them with onnxruntime alone.

Both towers of a model as ONNX files, checked against torch, in a folder that explains itself.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcls._core.errors import fail
from bcls._core.files import beside, replace_folder, write_whole
from bcls.models.base import RetrievalModel
from bcls.models.config import name_of
from bcls.models.folder import CARD, CONFIG, is_replaceable, load, plain_config
from bcls.models.onnx_towers import ImageTower, TextTower, TowerInputs, run_tower, tower_inputs, write_tower
from bcls.models.padded import Padded, trimmed

if TYPE_CHECKING:
    pass

#: Names of the files.
TOKENIZER, VOCABULARY = "tokenizer.json", "vocab.json"


def word_files(model: RetrievalModel) -> dict[str, str]:
    """The tokenizer or the vocabulary of a model, by file name; nothing where it knows token numbers only.

    A tokenizer is written with its longest caption and without padding, so that its reader need set nothing.
    """
    if model.vocabulary is not None:
        words = model.vocabulary.words
        content = {"word2idx": model.vocabulary.numbers, "idx2word": dict(enumerate(words)), "idx": len(words)}
        return {VOCABULARY: json.dumps(content, ensure_ascii=False)}
    encoder: Any = getattr(getattr(model, "text", None), "encoder", None)
    tokenizer = getattr(encoder, "tokenizer", None)
    if tokenizer is None:
        return {}
    from tokenizers import Tokenizer

    alone = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    alone.no_padding()
    alone.enable_truncation(encoder.longest)
    text: str = alone.to_str(pretty=True)
    return {TOKENIZER: text}


def export_folder(model: str | Path, out: str | Path) -> None:
    """Write a model's config, weights, vocabulary and card into a folder, replacing it whole.

    Args:
        model: A run folder, of which the best checkpoint is taken, or whatever else :func:`bcls.models.load` takes.
        out: The folder.

    Raises:
        ValueError: There is no such model, or something else than a model is at ``out``.
    """
    load(model).save_pretrained(out)


def page(model: RetrievalModel, exported: "Exported") -> str:
    """The README of an export; its Python block runs in the folder, with onnxruntime, numpy, Pillow and tokenizers."""
    shape = " x ".join(map(str, exported.image_shape))
    return _PAGE.format(
        name=exported.model,
        width=exported.width,
        image_kind="uint8 pixels" if exported.images == "pixels" else f"float32 {exported.images}",
        image_shape=shape,
        image_lengths=", and `lengths` (N) int64" if exported.images == "regions" else "",
        images=_images(model, exported),
        texts=_texts(exported),
        image_difference=f"{exported.image_difference:.1e}",
        text_difference=f"{exported.text_difference:.1e}",
        tolerance=f"{exported.tolerance:g}",
    )


def _images(model: RetrievalModel, exported: "Exported") -> str:
    if exported.images == "vectors":
        return _VECTORS
    if exported.images == "regions":
        return _REGIONS
    encoder: Any = getattr(getattr(model, "image", None), "encoder", None)
    preprocessing = getattr(encoder, "preprocessing", None)
    if preprocessing is None:
        backbone: Any = getattr(encoder, "backbone", None) or getattr(model, "backbone", None)
        resize = f"image = image.resize(({backbone.side}, {backbone.side}), resample={int(backbone.resample)})"
        return _PIXELS.format(resize=resize, crop="")
    height, width = preprocessing.height, preprocessing.width
    if width:
        resize = f"image = image.resize(({width}, {height}), resample={int(preprocessing.resample)})"
    else:
        resize = _SHORTER.format(side=height, resample=int(preprocessing.resample))
    crop = "" if preprocessing.crop is None else _CROP.format(height=preprocessing.crop[0], width=preprocessing.crop[1])
    return _PIXELS.format(resize=resize, crop=crop)


def _texts(exported: "Exported") -> str:
    if TOKENIZER in exported.text_files:
        return _TOKENIZER
    return _VOCABULARY if exported.text_files else _NUMBERS


_PAGE = """# Towers of a {name} model

`image.onnx` turns images into vectors, `text.onnx` captions; the score of a pair is the dot product of its two vectors,
their cosine. Made with [bcls](https://pypi.org/project/bcls/), which is not needed to use them.

| file | inputs | output |
|---|---|---|
| `image.onnx` | `images` ({image_shape}) {image_kind}{image_lengths} | `vectors` (N x {width}) float32, unit rows |
| `text.onnx` | `numbers` (C x W) int64, `lengths` (C) int64 | `vectors` (C x {width}) float32, unit rows |

N, C, W and R are free. What stands behind a caption's length is not read. Against torch, the largest difference of an
entry was {image_difference} for images and {text_difference} for captions; {tolerance} was allowed.

```python
import numpy as np
import onnxruntime

{images}

{texts}

image_tower = onnxruntime.InferenceSession("image.onnx")
text_tower = onnxruntime.InferenceSession("text.onnx")
image_vectors = image_tower.run(None, image_inputs)[0]
text_vectors = text_tower.run(None, {{"numbers": numbers, "lengths": lengths}})[0]
scores = image_vectors @ text_vectors.T  # rows are images, columns are captions
```
"""

_PIXELS = """from PIL import Image, ImageOps


def pixels(path):
    image = ImageOps.exif_transpose(Image.open(path))  # as the camera was held
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    image = image.convert("RGB")
    {resize}{crop}
    return np.asarray(image).transpose(2, 0, 1)


image_inputs = {{"images": np.stack([pixels(path) for path in ("a.jpg", "b.jpg")])}}"""

_SHORTER = """short = min(image.size)
    size = [int({side} * one / short) for one in image.size]
    image = image.resize(size, resample={resample})"""

_CROP = """
    left, top = (image.width - {width}) // 2, (image.height - {height}) // 2
    image = image.crop((left, top, left + {width}, top + {height}))"""

_VECTORS = 'image_inputs = {"images": np.load("features.npy").astype(np.float32)}  # (N, d)'

_REGIONS = """regions = np.load("features.npy").astype(np.float32)  # (N, R, d)
image_inputs = {"images": regions, "lengths": np.full(len(regions), regions.shape[1])}"""

_PADDED = """lengths = np.array([len(one) for one in encoded])
numbers = np.zeros((len(encoded), lengths.max()), dtype=np.int64)
for row, one in enumerate(encoded):
    numbers[row, : len(one)] = one"""

_TOKENIZER = f"""from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("{TOKENIZER}")
encoded = [tokenizer.encode(text).ids for text in ("a dog runs", "two people eat lunch")]
{_PADDED}"""

_VOCABULARY = f"""import json

words = json.load(open("vocab.json", encoding="utf-8"))["word2idx"]
captions = [["a", "dog", "runs"], ["two", "people", "eat", "lunch"]]  # in lower case, punctuation apart
encoded = [[1, *(words.get(word, 3) for word in caption), 2] for caption in captions]  # <start>, <unk>, <end>
{_PADDED}"""

_NUMBERS = """# The model was built without a vocabulary: encode captions with the one that it was trained with.
numbers, lengths = np.load("numbers.npy"), np.load("lengths.npy")"""


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
