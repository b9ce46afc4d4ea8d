"""Model configurations, and the registry that maps a model's name to its configuration and model class.

A configuration is a frozen dataclass of plain values, so that JSON and YAML can hold it. Nothing here imports torch.
"""

import dataclasses
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bcls._core.config import from_plain
from bcls._core.errors import IMPORT_HINT, check_choice, check_number, check_numbers, check_whole, fail, quoted

#: Number of regions of the SGRAF authors' detector, and the only one with a batch norm for each region.
DETECTOR_REGIONS = 36


@dataclass(frozen=True)
class VseppConfig:
    """VSE++: one linear layer for images, one GRU for captions, cosine similarity.

    Args:
        name: Name of the model in the registry.
        words: Size of the vocabulary. Default: that of the vocabulary passed to the model.
        features: Width of the image features. With ``backbone`` it is set to the backbone's width.
        width: Width of the embeddings of images and captions.
        word_width: Width of the word embeddings.
        bidirectional: Read captions in both directions and average the two last states.
        pooling: How regions become one vector: ``"mean"`` before the linear layer, or ``"max"`` after it.
        dropout_words: Dropout on the word embeddings; 0 in the original.
        dropout_features: Dropout on the image features; 0 in the original.
        backbone: Name of an image backbone; the model then reads images instead of features.
        finetune: Train the backbone as well.

    Example:
        >>> VseppConfig(words=8481, dropout_words=0.5).width
        1024
    """

    name: str = "vsepp"
    words: int | None = None
    features: int = 2048
    width: int = 1024
    word_width: int = 300
    bidirectional: bool = False
    pooling: str = "mean"
    dropout_words: float = 0.0
    dropout_features: float = 0.0
    backbone: str | None = None
    finetune: bool = False

    def __post_init__(self) -> None:
        _check_numbers(self)
        check_choice("pooling", self.pooling, ("mean", "max"))
        if self.finetune and self.backbone is None:
            fail("finetune", "a `backbone` to train", "none", "set `backbone`, or leave `finetune` out")


@dataclass(frozen=True)
class SafConfig:
    """SAF: similarity vectors of words and attended regions, averaged with learned attention weights.

    Args:
        name: Name of the model in the registry.
        words: With ``text: gru``: size of the vocabulary. Default: that of the vocabulary passed to the model.
        features: Width of the region features.
        width: Width of the region and word embeddings.
        word_width: With ``text: gru``: width of the word embeddings.
        similarity_width: Width of a similarity vector.
        regions: Number of regions. With 36, as in the authors' code, the self-attention over regions has a batch norm
            for each region; with any other number it has one for each channel, and images may then have any number of
            regions.
        dropout: Dropout on the word embeddings, or on the token states, and in both self-attentions.
        smooth: Factor before the softmax over regions.
        dropout_features: Dropout on the region features; 0 in the original.
        text: Reads captions: ``gru``, as in the original, or the token states of a transformer, which is trained as the
            parameter group `text encoder`: ``minilm`` (packaged), or the folder or hub name of a transformers model.
    """

    name: str = "saf"
    words: int | None = None
    features: int = 2048
    width: int = 1024
    word_width: int = 300
    similarity_width: int = 256
    regions: int = DETECTOR_REGIONS
    dropout: float = 0.4
    smooth: float = 9.0
    dropout_features: float = 0.0
    text: str = "gru"

    def __post_init__(self) -> None:
        _check_numbers(self)
        check_number("smooth", self.smooth, "the authors use 9", above=0)
        if self.text != "gru" and self.words is not None:
            hint = "leave it out: the encoder has its own vocabulary"
            fail("words", f"none with `text: {self.text}`", self.words, hint)


@dataclass(frozen=True)
class SgrConfig(SafConfig):
    """SGR: the similarity vectors of :class:`SafConfig` as the nodes of a graph, with a few steps of reasoning.

    Args:
        name: Name of the model in the registry.
        steps: Number of graph reasoning steps.
    """

    name: str = "sgr"
    steps: int = 3


@dataclass(frozen=True)
class SgrafConfig(SgrConfig):
    """SGRAF: an SGR and a SAF model of the same sizes, each with its own encoders; their scores are averaged."""

    name: str = "sgraf"


@dataclass(frozen=True)
class DualConfig:
    """Dual encoder: any image encoder with any text encoder, a head for each, cosine similarity.

    Args:
        name: Name of the model in the registry.
        image: Image encoder: the name, folder or hub name of a backbone (reads images), ``features`` (precomputed
            vectors or regions), or ``clip`` (both towers of the checkpoint in ``model``).
        text: Text encoder: ``minilm`` (packaged), ``gru`` (words of a vocabulary), or the folder or hub name of a
            transformers text model. Default: ``minilm``; with ``image: clip`` always ``clip``.
        model: With ``image: clip``: folder or hub name of a CLIP or SigLIP checkpoint of transformers.
        width: Width of the embeddings. Without heads it is set to the width of the encoders.
        image_head: Layers on the image features: ``linear``, ``mlp`` (the sum of a linear layer and a two-layer
            perceptron) or ``none``. Default: ``linear``; with ``image: clip``, ``none``.
        text_head: The same for captions. Default: ``mlp``; with ``image: clip``, ``none``.
        heads: Number of parallel heads on each side. Each gives a unit vector of width / heads; the score is the mean
            of their cosines. :func:`bcls.models.combine.merge` builds such a model from separately trained ones.
        head_weights: Weight of each head in the mean of the cosines. Default: equal weights.
        image_view: What a frozen backbone sees of an image: ``whole``, or the mean over the crops of ``mirrored``
            (two), ``four-crop`` or ``six-crop``, as in `bcls data features --view`. Better, and as many times slower.
        image_pooling: How regions, or a backbone's grid, become one vector: ``mean`` or ``max`` before the head,
            ``gpo`` after it.
        text_pooling: How words become one vector: ``mean``, ``cls`` (first token, transformers only) or ``last`` (last
            state, GRU only) before the head, ``gpo`` after it. Default: ``last`` for a GRU, else ``mean``.
        text_layers: With a frozen transformers text model: layers whose states are concatenated, 0 for its word
            embeddings. Default: the last layer alone.
        open_vocabulary: Add the classes of an EfficientNet-Lite image encoder, see
            :mod:`bcls.models.open_vocabulary`; set by ``scripts/photo_parts.py``.
        dropout_images: Dropout on the image features before the head; not used without a head.
        dropout_texts: Dropout on the caption features before the head; not used without a head.
        features: With ``image: features``: their width.
        words: With ``text: gru``: size of the vocabulary. Default: that of the vocabulary passed to the model.
        word_width: With ``text: gru``: width of the word embeddings.
        states: With ``text: gru``: width of the GRU states.
        bidirectional: With ``text: gru``: read captions in both directions and average the states.
        dropout_words: With ``text: gru``: dropout on the word embeddings.
        tune_image: Train the image encoder, not only the heads.
        tune_text: Train the text encoder, not only the heads. A GRU is always trained.
        unimodal: If above 0, width of a second head on each side, for the loss between items of one modality, see
            :class:`bcls.models.dual.UnimodalHeads`. Trained with ``unimodal_weight``, and not used in retrieval.
        lora_rank: If above 0, train LoRA adapters of this rank in the encoders that are tuned, and freeze the rest.
        lora_alpha: The output of the adapters is scaled by ``lora_alpha / lora_rank``.
        lora_targets: Name endings of the linear layers that get adapters; ``query`` and ``value`` in BERT and MiniLM.
        checkpointing: Keep no activations inside the layers of trained transformers encoders and compute them again in
            the backward pass: less memory, the same gradients, a second forward pass of these layers.
        base_sha256: With LoRA: hash of the encoders that the adapters belong to. Set when the model is built; loading
            with other encoders is an error.

    Example:
        >>> DualConfig().text
        'minilm'
        >>> DualConfig(image="clip", model="openai/clip-vit-base-patch32").text_head
        'none'
    """

    name: str = "dual"
    image: str = "efficientnet-lite2"
    text: str = ""
    model: str | None = None
    width: int = 512
    image_head: str = ""
    text_head: str = ""
    heads: int = 1
    head_weights: tuple[float, ...] = ()
    image_view: str = "whole"
    image_pooling: str = "mean"
    text_pooling: str = ""
    text_layers: tuple[int, ...] = ()
    open_vocabulary: bool = False
    dropout_images: float = 0.5
    dropout_texts: float = 0.2
    features: int | None = None
    words: int | None = None
    word_width: int = 300
    states: int = 1024
    bidirectional: bool = True
    dropout_words: float = 0.0
    tune_image: bool = False
    tune_text: bool = False
    unimodal: int = 0
    lora_rank: int = 0
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")
    checkpointing: bool = False
    base_sha256: str | None = None

    def __post_init__(self) -> None:
        clip, gru = self.image == "clip", self.text == "gru"
        defaults = {
            "text": "clip" if clip else "minilm",
            "image_head": "none" if clip else "linear",
            "text_head": "none" if clip else "mlp",
            "text_pooling": "last" if gru else "mean",
        }
        for name, default in defaults.items():  # a saved config holds the values that were used
            if getattr(self, name) == "":
                object.__setattr__(self, name, default)
        _check_numbers(self)
        _check_encoders(self, clip)
        _check_image_view(self, clip)
        for name in ("image_head", "text_head"):
            check_choice(name, getattr(self, name), ("linear", "mlp", "none"))
        check_choice("image_pooling", self.image_pooling, ("mean", "max", "gpo"))
        check_choice("text_pooling", self.text_pooling, ("mean", "last" if gru else "cls", "gpo"))
        _check_heads(self)
        _check_text_layers(self)
        _check_lora(self)


def _check_text_layers(config: DualConfig) -> None:
    layers = tuple(check_whole("text_layers", one, least=0) for one in config.text_layers)
    if layers and (config.text in ("gru", "clip") or config.tune_text):
        fail("text_layers", "none, unless the text encoder is a frozen transformer", layers, "leave it out")
    if config.open_vocabulary and not (config.image.startswith("efficientnet-lite") and config.text == "minilm"):
        got = f"{config.image} and {config.text}"
        fail("open_vocabulary", "EfficientNet-Lite and MiniLM as encoders", got, "leave it out")
    object.__setattr__(config, "text_layers", layers)


def _check_numbers(config: Any) -> None:
    """Check all sizes and dropout probabilities of a configuration."""
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if field.type is int or (field.type == int | None and value is not None):
            check_whole(name, value, least=0 if name in ("unimodal", "lora_rank") else 1)
        elif name.startswith("dropout") and check_number(name, value, "0 switches dropout off", low=0) >= 1:
            fail(name, "a probability below 1", value, "0 switches dropout off")


def _check_encoders(config: DualConfig, clip: bool) -> None:
    if (config.text == "clip") != clip:
        got = f"{config.text} with {config.image}"
        fail("text", "clip together with `image: clip`", got, "a CLIP checkpoint has both encoders")
    if clip and config.model is None:
        fail("model", "a CLIP or SigLIP checkpoint", "none", "give its folder or hub name")
    if not clip and config.model is not None:
        fail("model", "none without `image: clip`", repr(config.model), "choose encoders with `image` and `text`")
    for name in ("image_pooling", "text_pooling"):
        if clip and getattr(config, name) != "mean":
            fail(name, "none with `image: clip`", getattr(config, name), "leave it out: CLIP has its own pooling")
    if config.image == "features":
        if config.features is None:
            fail("features", "the width of the image features", "none", "it is the last size of their shape")
        if config.tune_image:
            fail("tune_image", "false with `image: features`", True, "features have no encoder to train")
    elif config.features is not None:
        fail("features", "none without `image: features`", config.features, f"the width is that of {config.image}")


def _check_image_view(config: DualConfig, clip: bool) -> None:
    from bcls.features.regions import ZOOMS

    view = check_choice("image_view", config.image_view, ("whole", *ZOOMS))
    if view == "whole":
        return
    if clip or config.image == "features":
        got = f"{view} with `image: {config.image}`"
        fail("image_view", "whole without a backbone", got, "extract features with `bcls data features --view`")
    if config.tune_image or config.image_pooling != "mean":
        got = f"{view} with a trained backbone" if config.tune_image else f"{config.image_pooling} pooling"
        fail("image_view", "a frozen backbone with mean pooling", got, "leave it out")


def _check_heads(config: DualConfig) -> None:
    if config.heads > 1 and (config.width % config.heads or "none" in (config.image_head, config.text_head)):
        expected = f"a divisor of the width {config.width}, and a head on each side"
        fail("heads", expected, config.heads, "leave it at 1")
    if config.head_weights != ():
        hint = "give one for each head, or leave it out for equal weights"
        for weight in check_numbers("head_weights", config.head_weights, hint, count=config.heads):
            check_number("head_weights", weight, hint, above=0)


def _check_lora(config: DualConfig) -> None:
    check_number("lora_alpha", config.lora_alpha, "16 is usual", above=0)
    adapted = config.tune_image or (config.tune_text and config.text != "gru")
    if config.lora_rank and not adapted:
        fail("lora_rank", "an encoder to train", "none", "set `tune_image` or `tune_text`, or leave LoRA out")
    targets = config.lora_targets
    if not isinstance(targets, tuple) or not all(isinstance(target, str) for target in targets):
        fail("lora_targets", "a tuple of layer names", repr(targets), "such as ('q_proj', 'v_proj')")
    if config.lora_rank and not targets:
        fail("lora_targets", "names of layers", "none", "such as q_proj and v_proj")
    if config.base_sha256 is not None and not config.lora_rank:
        fail("base_sha256", "none without LoRA", config.base_sha256, "leave it out")


def check_features(config: object, shape: Sequence[int], argument: str = "features", *, folder: object = "DIR") -> None:
    """Check that precomputed image features fit a model, from their shape alone.

    Models that read images, and models of your own, are not checked.

    Args:
        config: Configuration of the model.
        shape: Shape of the features: ``(N, d)`` for global vectors, ``(N, R, d)`` for regions.
        argument: Name of the features in the error message.
        folder: Folder of their dataset, for the error message.

    Raises:
        ValueError: The model needs regions and these are global vectors, or the width or the number of regions is
            wrong.

    Example:
        >>> check_features(VseppConfig(features=512), (1000, 512))
        >>> check_features(SafConfig(features=512), (1000, 512))
        Traceback (most recent call last):
        ...
        ValueError: `features`: expected regions (N, 36, 512), got (1000, 512), global vectors; extract ...
    """
    if isinstance(config, SafConfig):
        check_feature_shape(argument, shape, config.features, axes=(3,), regions=config.regions, folder=folder)
    elif isinstance(config, VseppConfig) and config.backbone is None:
        check_feature_shape(argument, shape, config.features)
    elif isinstance(config, DualConfig) and config.image == "features":
        check_feature_shape(argument, shape, config.features or 0)


def check_feature_shape(
    argument: str,
    shape: Sequence[int],
    width: int,
    *,
    axes: tuple[int, ...] = (2, 3),
    regions: int | None = None,
    folder: object = "DIR",
) -> None:
    """Check the shape of features against a width, a number of axes and a number of regions.

    Args:
        argument: Name of the features in the error message.
        shape: Their shape.
        width: Required last size, d.
        axes: Allowed numbers of axes: 2 for ``(N, d)``, 3 for ``(N, R, d)``.
        regions: Number of regions of a cross-attention model; with 36, no more are allowed.
        folder: Folder of their dataset, for the error message.

    Raises:
        ValueError: The shape does not fit.
    """
    limit = DETECTOR_REGIONS if regions == DETECTOR_REGIONS else None
    vectors, sets = f"(N, {width})", f"(N, {limit or 'R'}, {width})"
    expected = f"features {vectors} or {sets}"
    if len(axes) == 1:
        expected = f"vectors {vectors}" if axes == (2,) else f"regions {sets}"
    if axes == (3,) and len(shape) == 2:
        command = f"bcls data features {quoted(folder)} --regions crops-36 --name regions"
        hint = f"extract regions with `{command}`, or train a model for global vectors such as vsepp"
        fail(argument, expected, f"{tuple(shape)}, global vectors", hint)
    if len(shape) not in axes or shape[-1] != width:
        fail(argument, expected, tuple(shape), f"the model was built for features of width {width}")
    if limit is not None and shape[1] > limit:
        hint = "the model has a batch norm for each region; build it with another `regions` to allow any number"
        fail(argument, f"at most {limit} regions", tuple(shape), hint)


#: Registered models: name -> (configuration class, model class), each a class or a string ``"module:Class"``.
MODELS: dict[str, tuple[type | str, type | str]] = {}


def register_model(name: str, config_class: type | str, model_class: type | str) -> None:
    """Register a model, so that it can be built, saved, loaded, trained and indexed by its name.

    Call it at import time of the module that defines the model. On the command line, ``--import my_module`` imports
    that module before the command starts.

    Args:
        name: Name of the model, as in ``--model.name``.
        config_class: A frozen dataclass of plain values. ``config.json`` of a saved model holds them.
        model_class: A subclass of :class:`bcls.models.RetrievalModel`. It is called with the configuration, and with
            ``vocabulary=`` where one is given. Both classes may also be strings ``"my_package.my_module:MyModel"``,
            which are imported when the model is first used.

    Raises:
        ValueError: The name is taken by another model.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class BagsConfig:
        ...     name: str = "my-bags"
        ...     width: int = 256
        >>> register_model("my-bags", BagsConfig, "my_package.bags:BagsModel")
        >>> model_config({"name": "my-bags", "width": 64}).width
        64
        >>> del MODELS["my-bags"]
    """
    if name in MODELS and _class_path(MODELS[name][1]) != _class_path(model_class):
        fail("name", "a name that is not registered", repr(name), f"it is the name of {_class_path(MODELS[name][1])}")
    MODELS[name] = (config_class, model_class)


def model_config(config: Mapping[str, Any] | object, where: str = "config") -> Any:
    """Make the configuration of a model from plain values.

    Args:
        config: A mapping with ``name``, one of ``vsepp``, ``sgr``, ``saf``, ``sgraf``, ``dual`` or a registered name,
            and fields of its configuration. A configuration object is returned unchanged.
        where: Name of the mapping in messages.

    Raises:
        ValueError: A name or key is unknown (the message suggests the nearest one), or a value is not allowed.

    Example:
        >>> model_config({"name": "sgr", "width": 64}).steps
        3
        >>> model_config({"name": "srg"})
        Traceback (most recent call last):
        ...
        ValueError: `name`: expected one of 'vsepp', 'sgr', ..., got 'srg'; did you mean 'sgr'? Otherwise choose
        one of these, or import the module that registers it, with `--import MODULE`
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return config
    if not isinstance(config, Mapping):
        fail("config", "a dict with `name`, or a model configuration", repr(config), "such as {'name': 'vsepp'}")
    if "name" not in config:
        fail("config", f"`name`, one of {', '.join(MODELS)}", f"only {sorted(map(str, config))}", "add it")
    config_class = import_class(MODELS[check_choice("name", config["name"], MODELS, hint=IMPORT_HINT)][0])
    fields = {field.name for field in dataclasses.fields(config_class)}
    return from_plain(config_class, {key: config[key] for key in config if key != "name" or "name" in fields}, where)


def name_of(config: object) -> str:
    """The registered name of a configuration's class.

    Raises:
        ValueError: The class is not registered.

    Example:
        >>> name_of(SafConfig())
        'saf'
    """
    hint = f"the models are {', '.join(MODELS)}"
    return registered_name(config) or fail("config", "the configuration of a model", repr(config), hint)


def registered_name(config: object) -> str | None:
    """The registered name of a configuration's class; ``None`` if it is not registered."""
    # Compared by path, so that the modules of other models are not imported.
    path = _class_path(type(config))
    return next((name for name, (config_class, _) in MODELS.items() if _class_path(config_class) == path), None)


def _class_path(class_or_path: type | str) -> str:
    if isinstance(class_or_path, str):
        return class_or_path
    return f"{class_or_path.__module__}:{class_or_path.__qualname__}"


def import_class(class_or_path: type | str) -> Any:
    """A registered class, imported if necessary."""
    return pkgutil.resolve_name(class_or_path) if isinstance(class_or_path, str) else class_or_path
