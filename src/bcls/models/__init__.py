"""Retrieval models: built from a config, loaded from a folder, imported from the authors' checkpoints.

The classes are imported when they are needed, so that settings can be read without torch.
"""

from bcls.models.config import MODELS, SafConfig, SgrafConfig, SgrConfig, VseppConfig, build, model_config, name_of
from bcls.models.folder import load
from bcls.models.published import import_checkpoint

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
