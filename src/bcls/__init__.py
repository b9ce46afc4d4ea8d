"""Image-text retrieval with binary and continuous label supervision (BCLS).

The public names are imported when they are first used: ``import bcls`` is fast and does not import torch.

>>> from bcls import BCLSLoss
>>> BCLSLoss(alpha=0.2, beta=0.1)
BCLSLoss(...)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bcls.data.dataset import open_dataset
    from bcls.evaluation import compare, evaluate
    from bcls.labels import load_text_encoder as load_text_encoder
    from bcls.labels.relevance import relevance as relevance
    from bcls.losses import (
        AdaptiveLadderLoss,
        BCLSLoss,
        CWCLLoss,
        InfoNCELoss,
        KendallLoss,
        KendallWindowLoss,
        LadderLoss,
        LambdaLoss,
        ListMLELoss,
        RankNContrastLoss,
        RecallSurrogateLoss,
        RetrievalLoss,
        SAMLoss,
        SigmoidLoss,
        SmoothAPLoss,
        SmoothNDCGLoss,
        SoftLabelKLLoss,
        StreamingBCLSLoss,
        SumLoss,
        TripletHardLoss,
        TripletLoss,
        TripletSoftLoss,
        XCLRLoss,
        from_name,
        register_loss,
    )
    from bcls.models import build as build_model
    from bcls.models import load as load_model
    from bcls.models import register_model
    from bcls.search import PhotoIndex
    from bcls.training import TrainConfig
    from bcls.training.train import train

__version__ = "0.1.0"

#: Public names by the module that defines them; ``name:public`` where the two differ.
_MODULES = {
    "bcls.losses": (
        "AdaptiveLadderLoss BCLSLoss CWCLLoss InfoNCELoss KendallLoss KendallWindowLoss LadderLoss LambdaLoss "
        "ListMLELoss RankNContrastLoss RecallSurrogateLoss RetrievalLoss SAMLoss SigmoidLoss SmoothAPLoss "
        "SmoothNDCGLoss SoftLabelKLLoss StreamingBCLSLoss SumLoss TripletHardLoss TripletLoss TripletSoftLoss "
        "XCLRLoss from_name register_loss"
    ),
    "bcls.labels": "load_text_encoder relevance",
    "bcls.data.dataset": "open_dataset",
    "bcls.models": "build:build_model load:load_model register_model",
    "bcls.training": "TrainConfig",
    "bcls.training.train": "train",
    "bcls.evaluation": "compare evaluate",
    "bcls.search": "PhotoIndex",
}
_LOCATIONS = {
    name.rpartition(":")[2]: (module, name.partition(":")[0])
    for module, names in _MODULES.items()
    for name in names.split()
}

__all__ = [
    "AdaptiveLadderLoss",
    "BCLSLoss",
    "CWCLLoss",
    "InfoNCELoss",
    "KendallLoss",
    "KendallWindowLoss",
    "LadderLoss",
    "LambdaLoss",
    "ListMLELoss",
    "PhotoIndex",
    "RankNContrastLoss",
    "RecallSurrogateLoss",
    "RetrievalLoss",
    "SAMLoss",
    "SigmoidLoss",
    "SmoothAPLoss",
    "SmoothNDCGLoss",
    "SoftLabelKLLoss",
    "StreamingBCLSLoss",
    "SumLoss",
    "TrainConfig",
    "TripletHardLoss",
    "TripletLoss",
    "TripletSoftLoss",
    "XCLRLoss",
    "__version__",
    "build_model",
    "compare",
    "evaluate",
    "from_name",
    "load_model",
    "load_text_encoder",
    "open_dataset",
    "register_loss",
    "register_model",
    "relevance",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _LOCATIONS:
        raise AttributeError(f"module 'bcls' has no attribute {name!r}")
    module, original = _LOCATIONS[name]
    return getattr(import_module(module), original)


def __dir__() -> list[str]:
    return __all__
