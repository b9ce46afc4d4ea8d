"""Shapes that a config tells of its model's tensors, to be held against the weights before memory is taken."""

from collections.abc import Iterable
from typing import Any

from bcls.models.config import SafConfig, SgrafConfig, SgrConfig, VseppConfig
from bcls.models.dual.config import DualConfig

#: ``None`` for a size that the config does not tell.
Shape = tuple[int | None, ...]


def told_shapes(config: Any, names: Iterable[str], words: int | None) -> dict[str, Shape]:
    """Shapes of tensors by name: enough of them that every size among the settings stands in one.

    Args:
        config: Of a model; of kinds without large sizes nothing is told.
        names: Of the tensors that are stored, to find the adapters among them.
        words: Size of the vocabulary, where there is one.

    Example:
        >>> told_shapes(VseppConfig(words=9, features=5, width=6, word_width=4), (), None)
        {'fc.weight': (6, 5), 'reader.embed.weight': (9, 4)}
    """
    if isinstance(config, DualConfig):
        return _dual(config, names, words)
    if isinstance(config, VseppConfig):
        features = config.features if config.backbone is None else None
        return {
            "fc.weight": (config.width, features),
            "reader.embed.weight": (config.words or words, config.word_width),
        }
    if isinstance(config, SgrafConfig):
        parts = {"sgr.": _cross(config, words, config.steps), "saf.": _cross(config, words, 0)}
        return {prefix + name: shape for prefix, part in parts.items() for name, shape in part.items()}
    if isinstance(config, SafConfig):
        return _cross(config, words, config.steps if isinstance(config, SgrConfig) else 0)
    return {}


def _cross(config: SafConfig, words: int | None, steps: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {
        "fc.weight": (config.width, config.features),
        "reader.embed.weight": (config.words or words, config.word_width),
        "head.local.weight": (config.similarity_width, config.width),
    }
    if steps:
        shapes[f"head.steps.{steps - 1}.query.weight"] = (config.similarity_width, config.similarity_width)
    return shapes


def _dual(config: DualConfig, names: Iterable[str], words: int | None) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    gru = config.text == "gru"
    sides = (("image", config.image_head, config.features), ("text", config.text_head, config.states if gru else None))
    for side, head, width in sides:
        if head != "none":
            shapes[f"{side}.head.linear.weight"] = (config.width, width)
        if head == "mlp" and config.heads > 1:
            part = config.width // config.heads
            shapes[f"{side}.head.mlp.2.weight"] = (config.heads, part, part)
    if gru:
        shapes["text.encoder.reader.embed.weight"] = (config.words or words, config.word_width)
        shapes["text.encoder.reader.ahead.weight_hh_l0"] = (3 * config.states, config.states)
    if config.lora_rank:
        adapters = [name for name in names if ".lora_A." in name]
        shapes |= dict.fromkeys(adapters or ["an adapter's lora_A"], (config.lora_rank, None))
    return shapes
