"""Retrieval models: VSE++, SGR, SAF, SGRAF, dual encoders, and the photo model that ships with the package.

:func:`build` makes a model from a configuration, :func:`load` reads a saved one, :func:`import_checkpoint` reads the
authors' checkpoints, and :func:`register_model` adds a model of your own. Model classes, and the names for people who
write a model, are imported on first use, so that configurations can be read without torch.
"""

from importlib import import_module
from typing import Any

from bcls.models.config import (
    MODELS,
    DualConfig,
    SafConfig,
    SgrafConfig,
    SgrConfig,
    VseppConfig,
    check_features,
    model_config,
    name_of,
    register_model,
)
from bcls.models.loading import build, load
from bcls.models.published import import_checkpoint

register_model("vsepp", VseppConfig, "bcls.models.vsepp:VseppModel")
register_model("sgr", SgrConfig, "bcls.models.sgraf:CrossModel")
register_model("saf", SafConfig, "bcls.models.sgraf:CrossModel")
register_model("sgraf", SgrafConfig, "bcls.models.sgraf:SgrafModel")
register_model("dual", DualConfig, "bcls.models.dual:DualModel")
register_model("scenes", "bcls.models.scenes:ScenesConfig", "bcls.models.scenes:ScenesModel")

build_model, load_model = build, load

#: Names of :mod:`bcls.models.base`, which imports torch.
_LAZY = ("Padded", "RetrievalModel", "caption_tokens", "feature_batch", "pixel_batch", "vocabulary_size")

__all__ = [
    "MODELS",
    "DualConfig",
    "Padded",
    "RetrievalModel",
    "SafConfig",
    "SgrConfig",
    "SgrafConfig",
    "VseppConfig",
    "build",
    "build_model",
    "caption_tokens",
    "check_features",
    "feature_batch",
    "import_checkpoint",
    "load",
    "load_model",
    "model_config",
    "name_of",
    "pixel_batch",
    "register_model",
    "vocabulary_size",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("bcls.models.base"), name)
