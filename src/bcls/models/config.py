"""What each model is made from: sizes and options, as frozen dataclasses that JSON and YAML can hold."""

from dataclasses import dataclass
from typing import Any

from bcls._checks import check_choice, check_number, check_whole, fail

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
