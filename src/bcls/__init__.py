"""Image-text retrieval with binary and continuous label supervision (BCLS).

The public names are imported when they are first used: ``import bcls`` is fast and does not import torch.

>>> from bcls import BCLSLoss
>>> BCLSLoss(alpha=0.2, beta=0.1)
BCLSLoss(...)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bcls.data.dataset import open_dataset as open_dataset
    from bcls.evaluation import compare as compare
    from bcls.evaluation import evaluate as evaluate
    from bcls.labels import load_text_encoder as load_text_encoder
    from bcls.labels.relevance import relevance as relevance
    from bcls.losses import *  # noqa: F403
    from bcls.models import build_model as build_model
    from bcls.models import load_model as load_model
    from bcls.models import register_model as register_model
    from bcls.search import PhotoIndex as PhotoIndex
    from bcls.training import TrainConfig as TrainConfig
    from bcls.training.train import train as train

__version__ = "0.1.0"

#: Public names by the module that defines them.
_MODULES = {
    "bcls.losses": (
        "AdaptiveLadderLoss BCLSLoss CWCLLoss InfoNCELoss KendallLoss KendallWindowLoss LadderLoss LambdaLoss "
        "ListMLELoss RankNContrastLoss RecallSurrogateLoss RetrievalLoss SAMLoss SigmoidLoss SmoothAPLoss "
        "SmoothNDCGLoss SoftLabelKLLoss StreamingBCLSLoss SumLoss TripletHardLoss TripletLoss TripletSoftLoss "
        "XCLRLoss from_name register_loss"
    ),
    "bcls.labels": "load_text_encoder relevance",
    "bcls.data.dataset": "open_dataset",
    "bcls.models": "build_model load_model register_model",
    "bcls.training": "TrainConfig",
    "bcls.training.train": "train",
    "bcls.evaluation": "compare evaluate",
    "bcls.search": "PhotoIndex",
}
_LOCATIONS = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = ["__version__", *_LOCATIONS]


def __getattr__(name: str) -> Any:
    # A loss that was added to bcls.losses is public without an entry above.
    module = _LOCATIONS.get(name, "bcls.losses" if name.endswith("Loss") else None)
    if module is None:
        raise AttributeError(f"module 'bcls' has no attribute {name!r}")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            import_module("bcls._core.extras").require("torch", "train", f"bcls.{name}")
        raise


def __dir__() -> list[str]:
    return __all__
