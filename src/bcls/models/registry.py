"""Models by name: which config and which class, imported when they are asked for."""

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcls._checks import check_choice, fail
from bcls.models._parse import from_plain

if TYPE_CHECKING:
    from bcls.data.vocabulary import Vocabulary
    from bcls.models.base import RetrievalModel

#: Name -> ("module:config", "module:model").
MODELS = {
    "vsepp": ("bcls.models.config:VseppConfig", "bcls.models.vsepp:VseppModel"),
    "sgr": ("bcls.models.config:SgrConfig", "bcls.models.cross:CrossModel"),
    "saf": ("bcls.models.config:SafConfig", "bcls.models.cross:CrossModel"),
    "sgraf": ("bcls.models.config:SgrafConfig", "bcls.models.sgraf:SgrafModel"),
    "dual": ("bcls.models.dual.config:DualConfig", "bcls.models.dual.model:DualModel"),
    "scenes": ("bcls.demo.towers:ScenesConfig", "bcls.demo.towers:ScenesModel"),  # so that the demo's runs load
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
