"""What each model is made from: sizes and options, as frozen dataclasses that JSON and YAML can hold.

What a dual encoder is made from.

Models by name: which config and which class, imported when they are asked for.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcls._core.config import from_plain
from bcls._core.errors import check_choice, check_number, check_numbers, check_whole, fail

if TYPE_CHECKING:
    from bcls.data.vocabulary import Vocabulary
    from bcls.models.base import RetrievalModel

#: Number of regions that the authors' detector gives, and the only one with a norm for each region.
DETECTOR_REGIONS = 36


def _check_sizes(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if name != "words" or value is not None:
            check_whole(name, value, least=1)


def check_shares(config: Any, *names: str) -> None:
    """Check settings that are shares of what dropout leaves out: 0 or more, below 1."""
    for name in names:
        value = getattr(config, name)
        if check_number(name, value, "0 switches dropout off", low=0) >= 1:
            fail(name, "a share below 1", value, "0 switches dropout off")


@dataclass(frozen=True)
class VseppConfig:
    """VSE++: one linear layer for images, one GRU for captions, cosine.

    Example:
        >>> VseppConfig(words=8481, dropout_words=0.5).width
        1024
    """

    name: str = "vsepp"
    """The model's name in the registry."""
    words: int | None = None
    """Number of words; left out, that of the vocabulary."""
    features: int = 2048
    """Width of the image features. With ``backbone`` it is the backbone's, whatever is given here."""
    width: int = 1024
    """Width of the vectors of both sides."""
    word_width: int = 300
    """Width of a word's vector before the GRU."""
    bidirectional: bool = False
    """Read captions in both directions and take the mean of the two last states."""
    pooling: str = "mean"
    """How regions become one vector: ``"mean"`` of them before the linear layer, or ``"max"`` after it."""
    dropout_words: float = 0.0
    """Share of word vectors' entries that are dropped in training; 0 in the original."""
    dropout_features: float = 0.0
    """Share of image features' entries that are dropped in training; 0 in the original."""
    backbone: str | None = None
    """An image backbone by name, which makes the model see pixels; left out, it takes features."""
    finetune: bool = False
    """Train the backbone as well."""

    def __post_init__(self) -> None:
        _check_sizes(self, "words", "features", "width", "word_width")
        check_shares(self, "dropout_words", "dropout_features")
        check_choice("pooling", self.pooling, ("mean", "max"))
        if self.finetune and self.backbone is None:
            fail("finetune", "a `backbone` to train", "none", "name one, or leave `finetune` out")


@dataclass(frozen=True)
class SafConfig:
    """SAF: similarity vectors of all words with the regions they attend to, filtered by attention."""

    name: str = "saf"
    """The model's name in the registry."""
    words: int | None = None
    """Number of words; left out, that of the vocabulary."""
    features: int = 2048
    """Width of a region's features."""
    width: int = 1024
    """Width of the codes of regions and words."""
    word_width: int = 300
    """Width of a word's vector before the GRU."""
    similarity_width: int = 256
    """Width of a similarity vector."""
    regions: int = 36
    """Number of regions. 36, as the authors have it, gives a batch norm for each region in the self-attention over
    regions; any other number gives one for each channel, and then images may have any number of regions."""
    dropout: float = 0.4
    """Share dropped in training, of word vectors and in both self-attentions."""
    smooth: float = 9.0
    """Factor before the softmax over regions."""

    def __post_init__(self) -> None:
        _check_sizes(self, "words", "features", "width", "word_width", "similarity_width", "regions")
        check_shares(self, "dropout")
        check_number("smooth", self.smooth, "the authors use 9", above=0)


@dataclass(frozen=True)
class SgrConfig(SafConfig):
    """SGR: the similarity vectors of :class:`SafConfig` as nodes of a graph, reasoned over in a few steps."""

    name: str = "sgr"
    """The model's name in the registry."""
    steps: int = 3
    """Steps of graph reasoning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sizes(self, "steps")


@dataclass(frozen=True)
class SgrafConfig(SgrConfig):
    """SGRAF: an SGR and a SAF of the same sizes, each with its own encoders, and the mean of their scores."""

    name: str = "sgraf"
    """The model's name in the registry."""


_HEADS = ("linear", "mlp", "none")
_EQUAL = "one for each head; leave them out for equal ones"


@dataclass(frozen=True)
class DualConfig:
    """Any image side with any text side, a head for each, cosine.

    Example:
        >>> DualConfig().text
        'minilm'
        >>> DualConfig(image="clip", model="openai/clip-vit-base-patch32").text_head
        'none'
    """

    name: str = "dual"
    """The model's name in the registry."""
    image: str = "efficientnet-lite2"
    """Image side: a backbone by name, folder or hub name (pixels), ``features`` (precomputed vectors or regions), or
    ``clip`` (both towers of the checkpoint that ``model`` names)."""
    text: str = ""
    """Text side: ``minilm`` (packaged), ``gru`` (words of a vocabulary), or a transformers text model by folder or hub
    name. Left out: ``minilm``; with ``image: clip`` it is ``clip`` and nothing else."""
    model: str | None = None
    """With ``image: clip``: folder or hub name of a CLIP or SigLIP checkpoint of transformers."""
    width: int = 512
    """Width of the vectors of both sides; without heads it is the encoders', whatever is given here."""
    image_head: str = ""
    """From image features to vectors: ``linear``, ``mlp`` (linear and a two-layer perceptron, added up) or ``none``.
    Left out: ``linear``, and ``none`` with ``image: clip``."""
    text_head: str = ""
    """The same for captions. Left out: ``mlp``, and ``none`` with ``image: clip``."""
    heads: int = 1
    """Heads of each side, side by side: each gives a unit vector of width / heads, and a score is the mean of their
    cosines. :func:`bcls.models.combine.merge` makes one model of several that were trained apart."""
    head_weights: tuple[float, ...] = ()
    """How much each of several heads counts in the mean of the cosines; left out, all the same."""
    image_view: str = "whole"
    """What a frozen backbone sees of a picture: ``whole``, or the mean over ``mirrored`` (two crops), ``four-crop`` or
    ``six-crop``, as `bcls data features --view` makes it. Better, and as many times slower."""
    image_pooling: str = "mean"
    """How regions, or a backbone's grid, become one vector: ``mean`` or ``max`` before the head, ``gpo`` after it."""
    text_pooling: str = ""
    """How words become one vector: ``mean``, ``cls`` (the first, of a transformer) or ``last`` (the last state, of a
    GRU) before the head, ``gpo`` after it. Left out: ``last`` for a GRU, else ``mean``."""
    dropout_images: float = 0.5
    """Share of the image features that training leaves out before the head; 0 without a head."""
    dropout_texts: float = 0.2
    """Share of the caption features that training leaves out before the head; 0 without a head."""
    features: int | None = None
    """With ``image: features``: their width."""
    words: int | None = None
    """With ``text: gru``: number of words; left out, that of the vocabulary."""
    word_width: int = 300
    """With ``text: gru``: width of a word's vector."""
    states: int = 1024
    """With ``text: gru``: width of the GRU's states."""
    bidirectional: bool = True
    """With ``text: gru``: read captions in both directions and take the mean of the two states."""
    dropout_words: float = 0.0
    """With ``text: gru``: share of the word vectors' entries that training leaves out."""
    tune_image: bool = False
    """Train the image encoder, not only the heads."""
    tune_text: bool = False
    """Train the text encoder, not only the heads. A GRU is always trained."""
    lora_rank: int = 0
    """Above 0: of the encoders that are trained, train LoRA adapters of this rank and keep the rest frozen."""
    lora_alpha: float = 16.0
    """What adapters add is scaled by this over the rank."""
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")
    """Ends of the names of the linear layers with adapters; ``query`` and ``value`` in BERT and MiniLM."""
    base_sha256: str | None = None
    """With LoRA: the encoders that the adapters belong to. Filled in when the model is built; others are refused."""

    def __post_init__(self) -> None:
        clip = self.image == "clip"
        _fill(self, "text", "clip" if clip else "minilm")
        _fill(self, "image_head", "none" if clip else "linear")
        _fill(self, "text_head", "none" if clip else "mlp")
        _fill(self, "text_pooling", "last" if self.text == "gru" else "mean")
        _check_sides(self, clip)
        _check_features(self)
        for name in ("image_head", "text_head"):
            check_choice(name, getattr(self, name), _HEADS)
        _check_view(self, clip)
        check_choice("image_pooling", self.image_pooling, ("mean", "max", "gpo"))
        check_choice("text_pooling", self.text_pooling, ("mean", "last" if self.text == "gru" else "cls", "gpo"))
        for name in ("width", "word_width", "states", "heads"):
            check_whole(name, getattr(self, name), least=1)
        if self.heads > 1 and (self.width % self.heads or "none" in (self.image_head, self.text_head)):
            expected = f"a divisor of the width {self.width}, and a head on each side"
            fail("heads", expected, self.heads, "leave it at 1")
        if self.head_weights != ():
            for weight in check_numbers("head_weights", self.head_weights, _EQUAL, count=self.heads):
                check_number("head_weights", weight, _EQUAL, above=0)
        check_shares(self, "dropout_images", "dropout_texts", "dropout_words")
        _check_adapters(self)


def _fill(config: DualConfig, name: str, default: str) -> None:
    # A config is written down with what it means, not with what was left out.
    if getattr(config, name) == "":
        object.__setattr__(config, name, default)


def _check_sides(config: DualConfig, clip: bool) -> None:
    if (config.text == "clip") != clip:
        fail("text", "clip together with `image: clip`", f"{config.text} with {config.image}", "CLIP has two towers")
    if clip and config.model is None:
        fail("model", "a CLIP or SigLIP checkpoint", "none", "give its folder or hub name")
    if not clip and config.model is not None:
        fail("model", "none without `image: clip`", repr(config.model), "give encoders by `image` and `text`")
    for name in ("image_pooling", "text_pooling"):
        if clip and getattr(config, name) != "mean":
            fail(name, "none with `image: clip`", getattr(config, name), "its towers pool by themselves; leave it out")


def _check_view(config: DualConfig, clip: bool) -> None:
    from bcls.features.regions import ZOOMS

    check_choice("image_view", config.image_view, ("whole", *ZOOMS))
    if config.image_view == "whole":
        return
    if clip or config.image == "features":
        expected, got = "whole without a backbone", f"{config.image_view} with `image: {config.image}`"
        fail("image_view", expected, got, "make features with `bcls data features --view`")
    if config.tune_image or config.image_pooling != "mean":
        got = f"{config.image_view} with a trained backbone" if config.tune_image else f"{config.image_pooling} pooling"
        fail("image_view", "a frozen backbone and the mean over its grid", got, "leave it out")


def _check_features(config: DualConfig) -> None:
    if config.image == "features":
        if config.features is None:
            fail("features", "the width of the image features", "none", "it is the last number of their shape")
        check_whole("features", config.features, least=1)
        if config.tune_image:
            fail("tune_image", "false with `image: features`", True, "features have no encoder to train")
    elif config.features is not None:
        fail("features", "none without `image: features`", config.features, f"{config.image} knows its width")
    if config.words is not None:
        check_whole("words", config.words, least=1)


def _check_adapters(config: DualConfig) -> None:
    check_whole("lora_rank", config.lora_rank, least=0)
    check_number("lora_alpha", config.lora_alpha, "16 is usual", above=0)
    adapted = config.tune_image or (config.tune_text and config.text != "gru")
    if config.lora_rank and not adapted:
        fail("lora_rank", "an encoder to train", "none", "set `tune_image` or `tune_text`, or leave LoRA out")
    targets = config.lora_targets
    if not isinstance(targets, tuple) or not all(isinstance(one, str) for one in targets):
        fail("lora_targets", "a tuple of names of layers", repr(targets), "such as ('q_proj', 'v_proj')")
    if config.lora_rank and not targets:
        fail("lora_targets", "names of layers", "none", "such as q_proj and v_proj")
    if config.base_sha256 is not None and not config.lora_rank:
        fail("base_sha256", "none without LoRA", config.base_sha256, "leave it out")


#: Name -> ("module:config", "module:model").
MODELS = {
    "vsepp": ("bcls.models.config:VseppConfig", "bcls.models.vsepp:VseppModel"),
    "sgr": ("bcls.models.config:SgrConfig", "bcls.models.sgraf:CrossModel"),
    "saf": ("bcls.models.config:SafConfig", "bcls.models.sgraf:CrossModel"),
    "sgraf": ("bcls.models.config:SgrafConfig", "bcls.models.sgraf:SgrafModel"),
    "dual": ("bcls.models.config:DualConfig", "bcls.models.dual:DualModel"),
    "scenes": (
        "bcls.experiments.demo_model:ScenesConfig",
        "bcls.experiments.demo_model:ScenesModel",
    ),  # so that the demo's runs load
}


def model_config(config: Mapping[str, Any] | object) -> Any:
    """The config dataclass of plain settings.

    Args:
        config: ``{"name": ..., ...}`` with one of the names ``vsepp``, ``sgr``, ``saf``, ``sgraf``, ``dual`` (and
            ``scenes``, the demo's) and the fields of its config; or such a config, which is given back as it is.

    Raises:
        ValueError: An unknown name or key (the message names the nearest one), or a value that is not allowed.

    Example:
        >>> model_config({"name": "sgr", "width": 64}).steps
        3
        >>> model_config({"name": "srg"})
        Traceback (most recent call last):
        ...
        ValueError: `name`: expected one of 'vsepp', 'sgr', ..., got 'srg'; did you mean 'sgr'?
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return config
    if not isinstance(config, Mapping):
        fail("config", "a dict with `name`, or a config of a model", repr(config), "such as {'name': 'vsepp'}")
    if "name" not in config:
        fail("config", f"`name`, one of {', '.join(MODELS)}", f"only {sorted(map(str, config))}", "add it")
    kind = _found(MODELS[check_choice("name", config["name"], MODELS)][0])
    fields = {field.name for field in dataclasses.fields(kind)}
    return from_plain(kind, {key: config[key] for key in config if key != "name" or "name" in fields}, "config")


def name_of(config: object) -> str:
    """The registry's name of a config.

    Raises:
        ValueError: It is the config of no model here.

    Example:
        >>> from bcls.models.config import SafConfig
        >>> name_of(SafConfig())
        'saf'
    """
    # By place, so that no other model's modules are imported for the comparison.
    place = f"{type(config).__module__}:{type(config).__qualname__}"
    names = [name for name, (known, _) in MODELS.items() if known == place]
    if not names:
        fail("config", "the config of a model", repr(config), f"the models are {', '.join(MODELS)}")
    return names[0]


def build(
    config: Mapping[str, Any] | object, *, vocabulary: "Vocabulary | None" = None, folder: Path | None = None
) -> "RetrievalModel":
    """Make a model with fresh weights.

    Args:
        config: See :func:`model_config`.
        vocabulary: For models with a GRU: what turns strings into token numbers. Without one they take token numbers
            only, and the config must say how many ``words`` there are.
        folder: Of a saved model, whose own files describe its encoders; see :meth:`RetrievalModel.files`.

    Returns:
        The model, in training mode, on the CPU. Weights are drawn from torch's generator.

    Raises:
        ValueError: The config is wrong, or does not fit the vocabulary.

    Example:
        >>> build({"name": "vsepp", "words": 20, "features": 8, "width": 16}).config.width
        16
    """
    settings = model_config(config)
    kind = _found(MODELS[name_of(settings)][1])
    given = {"vocabulary": vocabulary, "folder": folder}
    model: RetrievalModel = kind(settings, **{key: value for key, value in given.items() if value is not None})
    return model


def _found(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
