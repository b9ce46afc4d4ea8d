"""Encoders of the dual model: backbones, precomputed features, GRU, transformers, and the towers of CLIP and SigLIP.

An image or text encoder is a module from :class:`Padded` inputs to features, with their ``width``, whether it is
``packaged`` (its weights come from an installed package), and ``prepare(items)``, which checks images or captions and
converts them to its input. Transformers checkpoints are read from folders and from the hub: safetensors only, and no
code from them.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

import bcls.features.image_processing as processing
from bcls._core.errors import fail
from bcls._core.extras import minilm_folder, require
from bcls._core.files import user_path
from bcls._core.progress import no_bars
from bcls.data.vocabulary import Vocabulary
from bcls.features.backbones import Backbone, load_backbone
from bcls.features.regions import zoomed
from bcls.models.base import caption_tokens, check_strings, pixel_batch, vocabulary_size
from bcls.models.config import DualConfig
from bcls.models.layers import Padded, WordReader, pad, trimmed


class Encoders(NamedTuple):
    """Both encoders of a model, and the scale and bias of the similarities of a CLIP or SigLIP checkpoint."""

    image: nn.Module
    text: nn.Module
    logit_scale: Tensor | None = None
    logit_bias: Tensor | None = None


def make_encoders(config: DualConfig, vocabulary: Vocabulary | None, folder: Path | None) -> Encoders:
    """Make the encoders of a configuration, pretrained where possible.

    Args:
        config: The configuration.
        vocabulary: With ``text: gru``.
        folder: Folder of a saved model. If it describes encoders, these are made with random weights.
    """
    if config.image == "clip":
        saved = _saved_encoder(folder)
        return load_clip(saved or str(config.model), weights=saved is None)
    image: nn.Module
    if config.image == "features":
        image = FeatureImages(config.features or 0)
    else:
        image = PixelImages(load_backbone(config.image), config.image_view)
    if config.text == "gru":
        return Encoders(image, GruText(config, vocabulary))
    return Encoders(image, make_text(config.text, folder).select_layers(config.text_layers))


def make_text(text: str, folder: Path | None) -> "TransformerText":
    """The packaged MiniLM, or a text model of transformers.

    Args:
        text: ``"minilm"``, or the folder or hub name of a text model.
        folder: Folder of a saved model. If it describes the encoder, this is made with random weights.
    """
    if text == "minilm":
        return load_text(minilm_folder(), packaged=True)
    saved = _saved_encoder(folder)
    return load_text(saved or text, weights=saved is None)


def _saved_encoder(folder: Path | None) -> Path | None:
    """The part of a saved model that describes its encoders, if there is one."""
    return folder / "encoder" if folder is not None and (folder / "encoder").is_dir() else None


class PixelImages(nn.Module):
    """A backbone; returns the cells of its grid, ``(N, h * w, d)``: with several crops the mean of each cell.

    Args:
        backbone: See :func:`bcls.features.load_backbone`.
        view: ``"whole"``, or a view that :func:`bcls.features.regions.zoomed` makes of the whole image.
    """

    def __init__(self, backbone: Backbone, view: str = "whole") -> None:
        super().__init__()
        self.backbone, self.view = backbone, view
        self.width, self.packaged = backbone.channels, backbone.packaged

    def prepare(self, images: Any) -> Padded:
        """Images resized for the backbone, ``(N, 3, S, S)`` uint8."""
        return pixel_batch(images, self.backbone.prepare, self.backbone.side)

    def forward(self, images: Padded) -> Padded:
        """See the class."""
        if self.view == "whole":
            grid = self.backbone(images.values)
        else:
            crops = zoomed(images.values, self.view)
            if torch.compiler.is_compiling():  # all crops together: the exported graph has the network once
                grid = self.backbone(crops.flatten(0, 1)).unflatten(0, (-1, crops.shape[1])).mean(1)
            else:  # one crop at a time: the memory of one crop
                grid = torch.stack([self.backbone(crop) for crop in crops.unbind(1)]).mean(0)
        return Padded(grid.flatten(2).transpose(1, 2))


class FeatureImages(nn.Module):
    """No encoder: images are given as features, vectors ``(N, d)`` or regions ``(N, R, d)``.

    Args:
        width: Width of the features, d.
    """

    packaged = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def prepare(self, images: Any) -> NoReturn:
        """Raise an error: only inputs that are not features reach an encoder."""
        values = images.values if isinstance(images, Padded) else images
        got = f"a tensor {tuple(values.shape)}" if isinstance(values, Tensor | np.ndarray) else "images"
        hint = "extract features first, or set a backbone as `image` in the config"
        fail("images", f"features (N, {self.width}) or (N, R, {self.width})", got, hint)

    forward = prepare


class GruText(nn.Module):
    """A GRU over the words of a vocabulary: last states ``(C, d)``, or with other pooling all states ``(C, W, d)``.

    Args:
        config: Sizes and pooling.
        vocabulary: Encodes strings; without one only token ids are accepted.
    """

    packaged = False

    def __init__(self, config: DualConfig, vocabulary: Vocabulary | None) -> None:
        super().__init__()
        self.words = vocabulary_size(config.words, vocabulary)
        self.width, self.vocabulary, self.last = config.states, vocabulary, config.text_pooling == "last"
        sizes = self.words, config.word_width, config.states
        self.reader = WordReader(*sizes, config.bidirectional, config.dropout_words)

    def prepare(self, texts: Any) -> Padded:
        """Token ids of captions, checked."""
        return caption_tokens(texts, self.vocabulary, self.words)

    def forward(self, texts: Padded) -> Padded:
        """See the class."""
        if self.last:
            return Padded(self.reader.last(texts))
        return Padded(self.reader.states(texts), texts.lengths)


#: Maximum tokens of a caption for encoders without a limit; larger limits than the second number mean "no limit".
_DEFAULT_LENGTH, _NO_LIMIT = 512, 1_000_000


class TransformerText(nn.Module):
    """A text model of transformers with its tokenizer; returns the states of the last layer, ``(C, W, d)``.

    Args:
        model: The encoder.
        tokenizer: Its tokenizer.
        longest: Maximum number of tokens; longer captions are truncated.
        packaged: Whether the weights come from an installed package.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, longest: int, *, packaged: bool) -> None:
        super().__init__()
        self.model, self.tokenizer, self.longest, self.packaged = model, tokenizer, longest, packaged
        config: Any = model.config
        self.width: int = config.hidden_size
        self.words: int = config.vocab_size
        self.layers: tuple[int, ...] = ()

    def select_layers(self, layers: tuple[int, ...]) -> "TransformerText":
        """Return the states of these layers side by side, 0 for the word embeddings; without any, of the last one."""
        config: Any = self.model.config
        if any(layer > config.num_hidden_layers for layer in layers):
            fail("text_layers", f"layers from 0 to {config.num_hidden_layers}", layers, "choose others")
        self.layers, self.width = layers, config.hidden_size * max(1, len(layers))
        return self

    def prepare(self, texts: Any) -> Padded:
        """Token ids of captions, special tokens included."""
        return tokenize(texts, self.tokenizer, self.words, self.longest)

    def forward(self, texts: Padded) -> Padded:
        """See the class."""
        mask = texts.mask
        # Padding is masked out, but must be a valid token id.
        ids = texts.values.masked_fill(~mask, 0)
        output = self.model(input_ids=ids, attention_mask=mask.long(), output_hidden_states=bool(self.layers))
        states: Tensor = output.last_hidden_state
        if self.layers:
            states = torch.cat([output.hidden_states[layer] for layer in self.layers], dim=-1)
        return Padded(states, texts.lengths)

    def files(self) -> dict[str, bytes]:
        """Config and tokenizer by file name, to make the same encoder without weights."""
        limit = json.dumps({"max_seq_length": self.longest}).encode()
        return {**_config_and_tokenizer(self.model.config, self.tokenizer), "sentence_bert_config.json": limit}


def load_text(source: str | Path, *, packaged: bool = False, weights: bool = True) -> TransformerText:
    """Read a text model.

    Args:
        source: Folder or hub name.
        packaged: Whether it comes from an installed package.
        weights: Read the weights; otherwise they are random, for a state that is loaded later.

    Raises:
        ValueError: There is no such model, or it is not a text model.
    """
    config = _read_part("text", source, "a config.json", _transformers().AutoConfig)
    if not getattr(config, "vocab_size", None) or not getattr(config, "hidden_size", None):
        fail("text", "a text model", f"{source}, a {config.model_type}", "use CLIP with `image: clip`")
    kind = _transformers().AutoModel
    model = _read_weights("text", source, kind) if weights else kind.from_config(config)
    if getattr(config, "is_encoder_decoder", False):
        model = model.get_encoder()
    # The pooling layer is for classifiers; unused parameters are an error in distributed training.
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    tokenizer = _read_part("text", source, "a tokenizer", _transformers().AutoTokenizer)
    settings = processing.read_settings(processing.find_file(_location(source), "sentence_bert_config.json"))
    limits = (
        settings.get("max_seq_length"),
        tokenizer.model_max_length,
        getattr(config, "max_position_embeddings", None),
    )
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit <= _NO_LIMIT]
    return TransformerText(model.eval(), tokenizer, min(known, default=_DEFAULT_LENGTH), packaged=packaged)


def tokenize(texts: Any, tokenizer: Any, words: int, longest: int) -> Padded:
    """Token ids of captions, special tokens included, checked; long strings are truncated.

    Args:
        texts: Strings, or token ids with lengths.
        tokenizer: Encodes strings.
        words: Size of the tokenizer's vocabulary.
        longest: Maximum number of tokens of a caption.

    Raises:
        ValueError: Anything else, or token ids that the encoder cannot read.
    """
    is_pair = isinstance(texts, tuple) and any(isinstance(part, Tensor) for part in texts)
    if isinstance(texts, Padded | Tensor) or is_pair:
        ids = trimmed(caption_tokens(texts, None, words))
        if ids.values.shape[1] > longest:
            got = ids.values.shape[1]
            fail("texts", f"at most {longest} tokens a caption", got, "truncate them, or pass strings")
        return ids
    check_strings(texts)
    if not len(texts):
        return Padded(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    # An empty string has no tokens where a tokenizer adds no special ones.
    empty = [tokenizer.pad_token_id or 0]
    ids = tokenizer([str(text) for text in texts], truncation=True, max_length=longest)["input_ids"]
    return pad([torch.tensor(row or empty, dtype=torch.int64) for row in ids])


def _config_and_tokenizer(config: Any, tokenizer: Any) -> dict[str, bytes]:
    """The files of a config and of a tokenizer, by name."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


#: Supported checkpoints: model type in their config -> class.
_CLIP_MODELS = {"clip": "CLIPModel", "siglip": "SiglipModel"}
#: Mean and standard deviation of red, green and blue if a checkpoint does not set them.
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_SIGLIP = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


class ClipImages(nn.Module):
    """The vision tower of CLIP or SigLIP with its projection: pixels ``(N, 3, S, S)`` to vectors ``(N, d)``."""

    packaged = False

    def __init__(self, model: Any, preprocessing: "Preprocessing") -> None:
        super().__init__()
        config = model.config.vision_config
        self.model, self.preprocessing = model.vision_model, preprocessing
        self.projection = getattr(model, "visual_projection", None)
        self.side: int = config.image_size
        self.width: int = config.hidden_size if self.projection is None else self.projection.out_features

    def prepare(self, images: Any) -> Padded:
        """Images resized and cropped as by the checkpoint's processor, ``(N, 3, S, S)`` uint8."""
        return pixel_batch(images, self.preprocessing.prepare, self.side)

    def forward(self, images: Padded) -> Padded:
        """See the class."""
        pooled: Tensor = self.model(pixel_values=self.preprocessing.normalize(images.values)).pooler_output
        return Padded(pooled if self.projection is None else self.projection(pooled))


class ClipText(nn.Module):
    """The text tower of CLIP or SigLIP with its projection: token ids to vectors ``(C, d)``.

    It keeps the tokenizer and the configs of the checkpoint and of its preprocessor, for :meth:`files`.
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
        # SigLIP was trained with texts padded to the full length, and reads its output at the last position.
        self.fill: bool = model.config.model_type == "siglip"
        own_width = getattr(config, "projection_size", config.hidden_size)
        self.width: int = own_width if self.projection is None else self.projection.out_features

    def prepare(self, texts: Any) -> Padded:
        """Token ids, special tokens included."""
        return tokenize(texts, self.tokenizer, self.words, self.longest)

    def forward(self, texts: Padded) -> Padded:
        """See the class."""
        ids = texts.values.masked_fill(~texts.mask, self.padding)
        if self.fill:
            ids = functional.pad(ids, (0, self.longest - ids.shape[1]), value=self.padding)
        # No attention mask: CLIP is causal and reads its output at the end token; SigLIP attends to padding as well.
        pooled: Tensor = self.model(input_ids=ids).pooler_output
        return Padded(pooled if self.projection is None else self.projection(pooled))

    def files(self) -> dict[str, bytes]:
        """Configs and tokenizer by file name, to make both towers without weights."""
        preprocessor = json.dumps(self.preprocessor).encode()
        return {**_config_and_tokenizer(self.whole_config, self.tokenizer), "preprocessor_config.json": preprocessor}


def load_clip(source: str | Path, *, weights: bool = True) -> Encoders:
    """Read a CLIP or SigLIP checkpoint.

    Args:
        source: Folder or hub name.
        weights: Read the weights; otherwise they are random, for a state that is loaded later.

    Raises:
        ValueError: There is no such checkpoint, or it is of another kind.
    """
    config = _read_part("model", source, "a config.json", _transformers().AutoConfig)
    if config.model_type not in _CLIP_MODELS:
        naflex = config.model_type == "siglip2"
        hint = "of SigLIP 2, use a checkpoint with a fixed size, not NaFlex" if naflex else "use one of these"
        fail("model", f"a checkpoint of {' or '.join(_CLIP_MODELS.values())}", f"a {config.model_type}", hint)
    kind = getattr(_transformers(), _CLIP_MODELS[config.model_type])
    model = _read_weights("model", source, kind) if weights else kind(config)
    tokenizer = _read_part("model", source, "a tokenizer", _transformers().AutoTokenizer)
    content = processing.read_settings(processing.find_file(_location(source), *processing.PROCESSOR_FILES))
    if "image_processor_type" not in content and config.model_type == "siglip":
        content = {"image_processor_type": "SiglipImageProcessor", **content}
    preprocessing = read_preprocessing(str(source), content, config.vision_config.image_size)
    logits = (getattr(model, name, None) for name in ("logit_scale", "logit_bias"))
    scale, bias = (None if one is None else one.detach().reshape(()).clone() for one in logits)
    return Encoders(ClipImages(model.eval(), preprocessing), ClipText(model, tokenizer, content), scale, bias)


class Preprocessing(NamedTuple):
    """Resize, crop and normalization from a checkpoint's ``preprocessor_config.json``, with Pillow only.

    Attributes:
        resize: Size, crop and filter.
        mean: Mean of red, green and blue on the scale 0..255.
        std: Standard deviation on the same scale.
    """

    resize: processing.Resize
    mean: list[float]
    std: list[float]

    def prepare(self, image: Image.Image) -> Tensor:
        """Resize and crop an image of any mode and size, ``(3, H, W)`` uint8."""
        return torch.from_numpy(self.resize.pixels(image))

    def normalize(self, pixels: Tensor) -> Tensor:
        """Normalize pixels from 0 to 255 for the first layer, ``(N, 3, H, W)`` float32."""
        mean, std = (torch.tensor(value, device=pixels.device)[:, None, None] for value in (self.mean, self.std))
        return (pixels.float() - mean) / std


def read_preprocessing(source: str, content: Mapping[str, Any], side: int) -> Preprocessing:
    """Read the settings of a CLIP or SigLIP image processor.

    Args:
        source: The checkpoint, for messages.
        content: ``preprocessor_config.json``; missing settings have the defaults of the processor's class.
        side: Side of the input of the vision tower.

    Raises:
        ValueError: The result would not have that side, or a setting is damaged.
    """
    if not content.get("do_resize", True):
        fail(source, "preprocessing that resizes images", "do_resize: false", "this kind of model is not supported")
    clip = "CLIP" in str(content.get("image_processor_type", content.get("feature_extractor_type", "CLIP")))
    size = content.get("size", side)
    height, width = processing.read_size(f"{source}: size", size)
    if clip and isinstance(size, int):  # CLIP keeps the aspect ratio if the size is one number
        width = None
    crop: tuple[int, ...] = ()
    if content.get("do_center_crop", clip):
        centre = processing.read_size(f"{source}: crop_size", content.get("crop_size", side))
        crop = centre[0], centre[0] if centre[1] is None else centre[1]
    result = crop or (height, width or 0)
    if result != (side, side):
        got = f"{result[0]} x {result[1]}"
        fail(source, f"preprocessing to {side} x {side} pixels", got, "config and preprocessor config do not match")
    resize = processing.Resize(height, width or 0, crop, processing.read_filter(source, content).name.lower())
    return Preprocessing(resize, *processing.read_colours(source, content, *(_CLIP if clip else _SIGLIP)))


def _transformers() -> ModuleType:
    return require("transformers", "text", "a model with a transformers encoder")


def _read_part(argument: str, source: str | Path, what: str, kind: Any, **options: Any) -> Any:
    """Read a part of a checkpoint with a class of transformers, whose errors become one line."""
    try:
        return kind.from_pretrained(_location(source), **options)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        # Its messages have many lines; the full text stays in the exception chain.
        reason = str(error).strip().split("\n", 1)[0]
        message = f"`{argument}`: expected a folder or hub name with {what}, got {str(source)!r}; {reason}"
        raise ValueError(message) from error


def _read_weights(argument: str, source: str | Path, kind: Any) -> Any:
    """A model with its weights, float32 whatever their stored type, in eval mode."""
    options = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
    with no_bars(_transformers().utils.logging):
        return _read_part(argument, source, "model.safetensors", kind, **options)


def _location(source: str | Path) -> str:
    # An existing folder takes precedence over a hub name.
    return str(user_path(source)) if user_path(source).is_dir() else str(source)
