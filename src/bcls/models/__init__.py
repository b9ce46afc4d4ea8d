"""Retrieval models: built from a config, loaded from a folder, imported from the authors' checkpoints.

The classes are imported when they are needed, so that settings can be read without torch.
"""

from bcls.models.config import SafConfig, SgrafConfig, SgrConfig, VseppConfig
from bcls.models.loading import load
from bcls.models.published import import_checkpoint
from bcls.models.registry import MODELS, build, model_config, name_of

__all__ = [
    "MODELS",
    "SafConfig",
    "SgrConfig",
    "SgrafConfig",
    "VseppConfig",
    "build",
    "import_checkpoint",
    "load",
    "model_config",
    "name_of",
]
