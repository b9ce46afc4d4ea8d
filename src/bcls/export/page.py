"""The page that goes with exported towers: how to use them with onnxruntime alone."""

from typing import TYPE_CHECKING, Any

from bcls.export.words import TOKENIZER
from bcls.models.base import RetrievalModel

if TYPE_CHECKING:
    from bcls.export.onnx import Exported


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
