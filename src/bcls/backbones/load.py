"""Find a backbone by its name."""

from pathlib import Path

from bcls._checks import check_choice, fail
from bcls._files import user_path
from bcls.backbones._efficientnet import NETWORKS, EfficientNetLite
from bcls.backbones.base import Backbone


def load_backbone(name: str | Path) -> Backbone:
    """Load a pretrained network that turns pictures into grids of features.

    Args:
        name: ``"efficientnet-lite0"``, ``"efficientnet-lite1"`` or ``"efficientnet-lite2"``, whose weights come with
            ``bcls[photos]``; the folder or hub name (``"facebook/dinov2-base"``) of a vision model that the
            transformers library knows; or several of these joined by ``+``, whose features stand side by side.

    Returns:
        The network, in eval mode on the CPU.

    Raises:
        ValueError: There is no such network, or its weights are not the published ones.
        MissingExtraError: A package that it needs is not installed.

    Example:
        >>> backbone = load_backbone("efficientnet-lite0")
        >>> backbone.side, backbone.channels, backbone.grid
        (224, 1280, (7, 7))
    """
    if isinstance(name, str) and name in NETWORKS:
        return EfficientNetLite(name)
    if isinstance(name, str) and "+" in name and not user_path(name).is_dir():
        from bcls.backbones._joined import JoinedBackbone

        return JoinedBackbone([load_backbone(part.strip()) for part in name.split("+")])
    from bcls.backbones._vision import VisionModel

    folder = user_path(name)
    if folder.is_dir():
        return VisionModel(folder.resolve())
    if isinstance(name, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        fail("backbone", "a folder with a model, or a name", f"{str(name)!r}, which is not there", "check the path")
    if "/" not in name:
        check_choice("backbone", name, NETWORKS)
    return VisionModel(name)
