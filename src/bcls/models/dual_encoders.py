"""Parts of transformers checkpoints, from folders and from the hub: safetensors only, no code of theirs.

What a transformers checkpoint does to a picture before its first layer, with Pillow alone.

Image encoders: a backbone that sees pixels, and none for features that were made before.

Text encoders: a GRU over a vocabulary, and transformers.

CLIP and SigLIP as they are: both towers of one transformers checkpoint, with its own preprocessing.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from bcls._core.errors import fail
from bcls._core.extras import require
from bcls._core.files import user_path
from bcls._core.progress import no_bars
from bcls.data.text_files import read_json
from bcls.data.vocabulary import Vocabulary
from bcls.features.backbones import Backbone
from bcls.features.image_processing import read_colours, read_filter, read_size
from bcls.features.regions import zoomed
from bcls.models.base import pixel_batch
from bcls.models.padded import Padded, pad, trimmed
from bcls.models.text import WordReader, caption_numbers, check_strings

Part = TypeVar("Part")


def transformers() -> ModuleType:
    """The library, or the message how to get it."""
    return require("transformers", "text", "a model with a transformers encoder")


def read_part(argument: str, source: str | Path, what: str, read: Callable[[], Part]) -> Part:
    """Call a reader of transformers and turn what it raises into one line.

    Raises:
        ValueError: There is no such checkpoint, or it cannot be reached or read.
    """
    try:
        return read()
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        # Its messages run over many lines; the whole stays in the chain.
        reason = str(error).strip().split("\n", 1)[0]
        message = f"`{argument}`: expected a folder or hub name with {what}, got {str(source)!r}; {reason}"
        raise ValueError(message) from error


def read_config(argument: str, source: str | Path) -> Any:
    """The checkpoint's ``config.json``."""
    library = transformers()
    return read_part(argument, source, "a config.json", lambda: library.AutoConfig.from_pretrained(_place(source)))


def read_weights(argument: str, source: str | Path, kind: Any) -> Any:
    """A model with its weights, float32 whatever they are stored in, in eval mode."""
    options = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
    with no_bars(transformers().utils.logging):
        return read_part(argument, source, "model.safetensors", lambda: kind.from_pretrained(_place(source), **options))


def read_tokenizer(argument: str, source: str | Path) -> Any:
    """The tokenizer."""
    library = transformers()
    return read_part(argument, source, "a tokenizer", lambda: library.AutoTokenizer.from_pretrained(_place(source)))


def read_json_part(source: str | Path, name: str) -> dict[str, Any]:
    """A small JSON file beside the weights; empty where there is none."""
    hub = require("transformers.utils", "text", "a model with a transformers encoder")
    path = hub.cached_file(_place(source), name, _raise_exceptions_for_missing_entries=False)
    if path is None:
        return {}
    content = read_json(Path(path))
    if not isinstance(content, dict):
        fail(str(path), "a JSON object", type(content).__name__, "copy the checkpoint again")
    return content


def _place(source: str | Path) -> str:
    # A folder that is there is meant, even where the hub has something of that name.
    return str(user_path(source)) if user_path(source).is_dir() else str(source)


#: Mean and deviation of red, green and blue where a checkpoint tells none.
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_SIGLIP = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop, scale and shift, as a checkpoint's ``preprocessor_config.json`` says."""

    height: int
    """Of the resized picture; with ``width`` 0, length of its shorter side."""
    width: int
    """Of the resized picture; 0 where the picture keeps its shape."""
    crop: tuple[int, int] | None
    """Height and width of the middle that is kept."""
    resample: Image.Resampling
    """The filter that it is resized with."""
    scale: float
    """What values from 0 to 255 are multiplied by."""
    mean: tuple[float, ...]
    """What is subtracted from the scaled red, green and blue."""
    std: tuple[float, ...]
    """What they are divided by then."""

    def prepare(self, image: Image.Image) -> Tensor:
        """A picture resized and cropped, ``(3, H, W)`` uint8.

        Args:
            image: A picture of any mode and size.
        """
        image = image.convert("RGB")
        height, width = self.height, self.width
        if not width:
            short, long = sorted(image.size)
            other = int(self.height * long / short)
            height, width = (self.height, other) if image.height <= image.width else (other, self.height)
        image = image.resize((width, height), resample=self.resample)
        if self.crop is not None:
            top, left = (height - self.crop[0]) // 2, (width - self.crop[1]) // 2
            image = image.crop((left, top, left + self.crop[1], top + self.crop[0]))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixels from 0 to 255 on the scale of the first layer, ``(N, 3, H, W)`` float32."""
        mean, std = (torch.tensor(one, device=pixels.device)[:, None, None] for one in (self.mean, self.std))
        return (pixels.float() * self.scale - mean) / std


def read_preprocessing(source: str, content: Mapping[str, Any], side: int) -> Preprocessing:
    """Read the settings of a CLIP or SigLIP image processor.

    Args:
        source: The checkpoint, for messages.
        content: ``preprocessor_config.json``; what it leaves out is what its class has by default.
        side: Side of the pictures that the vision tower takes.

    Raises:
        ValueError: The pictures would not have that side, or a setting is damaged.
    """
    if not content.get("do_resize", True):
        fail(source, "preprocessing that resizes pictures", "do_resize: false", "this kind of model is not supported")
    clip = "CLIP" in str(content.get("image_processor_type", content.get("feature_extractor_type", "CLIP")))
    size = content.get("size", side)
    height, width = read_size(f"{source}: size", size)
    if clip and isinstance(size, int):  # CLIP's keeps a picture's shape where it is told one number
        width = None
    crop: tuple[int, int] | None = None
    if content.get("do_center_crop", clip):
        middle = read_size(f"{source}: crop_size", content.get("crop_size", side))
        crop = middle[0], middle[0] if middle[1] is None else middle[1]
    colours = read_colours(source, content, *(_CLIP if clip else _SIGLIP))
    found = Preprocessing(
        height=height,
        width=width or 0,
        crop=crop,
        resample=read_filter(source, content),
        scale=colours.factor,
        mean=colours.mean,
        std=colours.std,
    )
    result = found.crop if found.crop is not None else (found.height, found.width)
    if result != (side, side):
        got = f"{result[0]} x {result[1]}"
        fail(source, f"preprocessing to {side} x {side} pixels", got, "the checkpoint's two files do not fit together")
    return found


class PixelImages(nn.Module):
    """A backbone; gives the cells of its grid, ``(N, h * w, d)``: of several crops their mean, cell by cell.

    Args:
        backbone: See :func:`bcls.features.load_backbone`.
        view: ``"whole"``, or one of the views that :func:`bcls.features.regions.zoomed` makes of the whole picture.
    """

    def __init__(self, backbone: Backbone, view: str = "whole") -> None:
        super().__init__()
        self.backbone, self.view = backbone, view
        self.width, self.packaged = backbone.channels, backbone.packaged

    def prepare(self, images: Any) -> Padded:
        """Pictures as the backbone wants them, ``(N, 3, S, S)`` uint8."""
        return pixel_batch(images, self.backbone.prepare, self.backbone.side)

    def forward(self, images: Padded) -> Padded:
        """See the class."""
        if self.view == "whole":
            grid = self.backbone(images.values)
        else:
            # One after the other: an exported network takes any number of pictures, and memory stays that of one crop.
            crops = zoomed(images.values, self.view).unbind(1)
            grid = torch.stack([self.backbone(crop) for crop in crops]).mean(0)
        return Padded(grid.flatten(2).transpose(1, 2))


class FeatureImages(nn.Module):
    """No encoder: images come as features, vectors ``(N, d)`` or regions ``(N, R, d)``, which pass by it.

    Args:
        width: Their width, d.
    """

    packaged = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def prepare(self, images: Any) -> NoReturn:
        """Refuse what is no features."""
        values = images.values if isinstance(images, Padded) else images
        got = f"a tensor {tuple(values.shape)}" if isinstance(values, Tensor | np.ndarray) else "pictures"
        remedy = "make features first, or name a backbone as `image` in the config"
        fail("images", f"features (N, {self.width}) or (N, R, {self.width})", got, remedy)

    forward = prepare


def values_of(items: Any) -> Tensor | None:
    """The numbers of inputs that are numbers already: arrays, tensors, with lengths or without; ``None`` for others."""
    if isinstance(items, tuple) and len(items) == 2 and isinstance(items[0], Tensor):
        return items[0]
    values = items.values if isinstance(items, Padded) else items
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return torch.from_numpy(np.ascontiguousarray(values))
    return values if isinstance(values, Tensor) else None


#: Tokens at which captions are cut where an encoder has no limit, and what is no limit but a mark that there is none.
_USUAL_LENGTH, _NO_LENGTH = 512, 1_000_000


class GruText(nn.Module):
    """A GRU over the words of a vocabulary.

    Args:
        reader: Word vectors and the GRU.
        width: Width of a state, d.
        words: Number of words.
        vocabulary: What encodes strings; without one only token numbers are read.
        last: Whether the last state stands for the caption, ``(C, d)``; else all states are given, ``(C, W, d)``.
    """

    packaged = False

    def __init__(self, reader: WordReader, width: int, words: int, vocabulary: Vocabulary | None, last: bool) -> None:
        super().__init__()
        self.reader, self.width, self.words, self.vocabulary, self.last = reader, width, words, vocabulary, last

    def prepare(self, texts: Any) -> Padded:
        """Token numbers of captions, checked."""
        return caption_numbers(texts, self.vocabulary, self.words)

    def forward(self, texts: Padded) -> Padded:
        """See the class."""
        if self.last:
            return Padded(self.reader.last(texts))
        return Padded(self.reader.states(texts), texts.lengths)


class TransformerText(nn.Module):
    """A text model of transformers with its tokenizer; gives the last layer's words, ``(C, W, d)``.

    Args:
        model: The encoder.
        tokenizer: Its tokenizer.
        longest: Tokens at which captions are cut.
        packaged: Whether the weights come from an installed package.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, longest: int, *, packaged: bool) -> None:
        super().__init__()
        self.model, self.tokenizer, self.longest, self.packaged = model, tokenizer, longest, packaged
        config: Any = model.config
        self.width: int = config.hidden_size
        self.words: int = config.vocab_size

    def prepare(self, texts: Any) -> Padded:
        """Token numbers of captions, the special ones included."""
        return tokens(texts, self.tokenizer, self.words, self.longest)

    def forward(self, texts: Padded) -> Padded:
        """See the class."""
        mask = texts.mask
        # What stands behind a caption is hidden from the others, and must only be a number that exists.
        numbers = texts.values.masked_fill(~mask, 0)
        states: Tensor = self.model(input_ids=numbers, attention_mask=mask.long()).last_hidden_state
        return Padded(states, texts.lengths)

    def files(self) -> dict[str, bytes]:
        """What it takes to make the same encoder without weights: config and tokenizer, by file name."""
        about = {"max_seq_length": self.longest}
        found = config_and_tokenizer(self.model.config, self.tokenizer)
        return {**found, "sentence_bert_config.json": json.dumps(about).encode()}


def load_text(source: str | Path, *, packaged: bool = False, weights: bool = True) -> TransformerText:
    """Read a text model.

    Args:
        source: Folder or hub name.
        packaged: Whether it comes from an installed package.
        weights: Read them; without, they are drawn, for a state that is loaded later.

    Raises:
        ValueError: There is no such model, or it reads no text.
    """
    library = transformers()
    config = read_config("text", source)
    if not getattr(config, "vocab_size", None) or not getattr(config, "hidden_size", None):
        fail("text", "a model that reads text", f"{source}, a {config.model_type}", "CLIP has `image: clip`")
    kind = library.AutoModel
    model = read_weights("text", source, kind) if weights else kind.from_config(config)
    if getattr(config, "is_encoder_decoder", False):
        model = model.get_encoder()
    # The layer over the first token is for classifiers; without use it would stand in the way of training.
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    tokenizer = read_tokenizer("text", source)
    told = read_json_part(source, "sentence_bert_config.json").get("max_seq_length")
    limits = (told, tokenizer.model_max_length, getattr(config, "max_position_embeddings", None))
    # Where there is no limit, as in T5, tokenizers say a number that is no length.
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit <= _NO_LENGTH]
    return TransformerText(model.eval(), tokenizer, min(known, default=_USUAL_LENGTH), packaged=packaged)


def tokens(texts: Any, tokenizer: Any, words: int, longest: int) -> Padded:
    """Token numbers of captions, the special ones included, checked; strings are cut where they are too long.

    Args:
        texts: Strings, or token numbers with lengths.
        tokenizer: What encodes strings.
        words: How many tokens there are.
        longest: Tokens that a caption may have.

    Raises:
        ValueError: Something else, or token numbers that the encoder cannot read.
    """
    if is_text(texts):
        return _encode(tokenizer, texts, longest)
    numbers = trimmed(caption_numbers(texts, None, words))
    if numbers.values.shape[1] > longest:
        fail("texts", f"at most {longest} tokens a caption", numbers.values.shape[1], "cut them, or give strings")
    return numbers


def _encode(tokenizer: Any, texts: Sequence[str], longest: int) -> Padded:
    """Token numbers of texts, at least one each, ``(C, W)`` with lengths."""
    if not len(texts):
        return Padded(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    # An empty text can be no tokens at all where a tokenizer adds no marks.
    empty = [tokenizer.pad_token_id or 0]
    numbers = tokenizer([str(one) for one in texts], truncation=True, max_length=longest)["input_ids"]
    return pad([torch.tensor(one or empty, dtype=torch.int64) for one in numbers])


def is_text(texts: Any) -> bool:
    """Whether these are strings; a single string is refused.

    Raises:
        ValueError: It is one string, or a list with something else in it.
    """
    if isinstance(texts, Padded | Tensor) or (
        isinstance(texts, tuple) and any(isinstance(one, Tensor) for one in texts)
    ):
        return False
    check_strings(texts)
    return True


def config_and_tokenizer(config: Any, tokenizer: Any) -> dict[str, bytes]:
    """The files of a config and of a tokenizer, by name."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


_KINDS = {"clip": "CLIPModel", "siglip": "SiglipModel"}


class ImageTower(nn.Module):
    """The vision tower with its projection: pixels ``(N, 3, S, S)`` to vectors ``(N, d)``."""

    packaged = False

    def __init__(self, model: Any, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.model, self.preprocessing = model.vision_model, preprocessing
        self.projection = getattr(model, "visual_projection", None)
        self.side: int = model.config.vision_config.image_size
        self.width: int = (
            model.config.vision_config.hidden_size if self.projection is None else self.projection.out_features
        )

    def prepare(self, images: Any) -> Padded:
        """Pictures resized and cropped as the checkpoint's processor does, ``(N, 3, S, S)`` uint8."""
        return pixel_batch(images, self.preprocessing.prepare, self.side)

    def forward(self, images: Padded) -> Padded:
        """See the class."""
        pooled: Tensor = self.model(pixel_values=self.preprocessing.normalise(images.values)).pooler_output
        return Padded(pooled if self.projection is None else self.projection(pooled))


class TextTower(nn.Module):
    """The text tower with its projection: token numbers to vectors ``(C, d)``.

    It keeps the tokenizer, the checkpoint's config and what its preprocessor is told, for :meth:`files`.
    """

    packaged = False

    def __init__(self, model: Any, tokenizer: Any, preprocessor: dict[str, Any]) -> None:
        super().__init__()
        self.whole_config, self.preprocessor = model.config, preprocessor
        config = model.config.text_config
        self.model, self.tokenizer = model.text_model, tokenizer
        self.projection = getattr(model, "text_projection", None)
        self.longest: int = config.max_position_embeddings
        self.words: int = config.vocab_size
        self.padding: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        # SigLIP has learnt from texts filled up to the full length, and reads its answer off the last place.
        self.fill: bool = model.config.model_type == "siglip"
        self.width: int = (
            getattr(config, "projection_size", config.hidden_size)
            if self.projection is None
            else self.projection.out_features
        )

    def prepare(self, texts: Any) -> Padded:
        """Token numbers, the special ones included."""
        return tokens(texts, self.tokenizer, self.words, self.longest)

    def forward(self, texts: Padded) -> Padded:
        """See the class."""
        numbers = texts.values.masked_fill(~texts.mask, self.padding)
        if self.fill:
            numbers = functional.pad(numbers, (0, self.longest - numbers.shape[1]), value=self.padding)
        # No attention mask: CLIP reads forwards and stops at the end mark, SigLIP reads the filling as well.
        pooled: Tensor = self.model(input_ids=numbers).pooler_output
        return Padded(pooled if self.projection is None else self.projection(pooled))

    def files(self) -> dict[str, bytes]:
        """What it takes to make both towers without weights, by file name."""
        found = config_and_tokenizer(self.whole_config, self.tokenizer)
        return {**found, "preprocessor_config.json": json.dumps(self.preprocessor).encode()}


@dataclass(frozen=True)
class Towers:
    """Both towers of a checkpoint, and what its similarities are multiplied by and shifted by."""

    image: ImageTower
    text: TextTower
    logit_scale: Tensor
    logit_bias: Tensor | None


def load_towers(source: str | Path, *, weights: bool = True) -> Towers:
    """Read a CLIP or SigLIP checkpoint.

    Args:
        source: Folder or hub name.
        weights: Read them; without, they are drawn, for a state that is loaded later.

    Raises:
        ValueError: There is no such checkpoint, or it is of another kind.
    """
    library = transformers()
    config = read_config("model", source)
    if config.model_type not in _KINDS:
        naflex = config.model_type == "siglip2"
        remedy = "of SigLIP 2, take a checkpoint of one size, not NaFlex" if naflex else "use one of these"
        fail("model", f"a checkpoint of {' or '.join(_KINDS.values())}", f"a {config.model_type}", remedy)
    kind = getattr(library, _KINDS[config.model_type])
    model = read_weights("model", source, kind) if weights else kind(config)
    tokenizer = read_tokenizer("model", source)
    content = read_json_part(source, "preprocessor_config.json")
    if not content:
        content = read_json_part(source, "processor_config.json").get("image_processor", {})
    if "image_processor_type" not in content and config.model_type == "siglip":
        content = {"image_processor_type": "SiglipImageProcessor", **content}
    preprocessing = read_preprocessing(str(source), content, config.vision_config.image_size)
    bias = getattr(model, "logit_bias", None)
    return Towers(
        ImageTower(model.eval(), preprocessing),
        TextTower(model, tokenizer, content),
        model.logit_scale.detach().reshape(()).clone(),
        None if bias is None else bias.detach().reshape(()).clone(),
    )
