"""Build a model from a configuration, or load one from a folder, a training run, the package or the hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcls._core.config import read_yaml
from bcls._core.errors import fail
from bcls._core.extras import require
from bcls._core.files import HUB_NAME, user_path
from bcls.data.vocabulary import Vocabulary
from bcls.models.folder import build_any, is_model_folder, load_folder

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel

#: The models that ship with the package.
SHIPPED = {name: Path(__file__).parent / name for name in ("photo", "photo-fast")}
#: Files of a saved model that are downloaded from the hub.
_FILES = ["*.json", "*.onnx", "*.safetensors", "README.md", "encoder/*"]


def build(
    config: Mapping[str, Any] | object, *, vocabulary: Vocabulary | None = None, folder: Path | None = None
) -> "RetrievalModel":
    """Make a model with new weights.

    Args:
        config: See :func:`bcls.models.model_config`.
        vocabulary: For models with a GRU: turns strings into token ids. Without one they accept token ids only, and the
            configuration must set ``words``.
        folder: Folder of a saved model whose files describe its encoders; see
            :meth:`bcls.models.RetrievalModel.files`.

    Returns:
        The model, in training mode, on the CPU. Weights are drawn from torch's default generator.

    Raises:
        ValueError: The configuration is wrong, or does not fit the vocabulary.

    Example:
        >>> build({"name": "vsepp", "words": 20, "features": 8, "width": 16}).config.width
        16
    """
    model: RetrievalModel = build_any(config, vocabulary, folder)
    return model


def load(path_or_name: str | Path) -> "RetrievalModel":
    """Load a model, on the CPU and in eval mode.

    Args:
        path_or_name: The folder of a saved model; a run folder, of which the best checkpoint is used, else the last;
            ``"photo"`` or ``"photo-fast"``, the models that ship with the package; or a name on the Hugging Face Hub,
            ``owner/model``.

    Raises:
        ValueError: There is no such model, or its files are damaged or do not fit together.
        MissingExtraError: A hub name is given and the extra ``hub`` is not installed.
    """
    model: RetrievalModel = load_folder(find_folder(path_or_name))
    return model


def run_settings(folder: Path) -> dict[str, Any]:
    """The ``config.yaml`` of a run, from its folder or that of one of its checkpoints; empty for other folders.

    Raises:
        ValueError: The file is damaged.
    """
    path = (folder.parent.parent if folder.parent.name == "checkpoints" else folder) / "config.yaml"
    settings = read_yaml(path) if path.is_file() else None
    return settings if isinstance(settings, dict) else {}


def find_folder(path_or_name: str | Path) -> Path:
    """Folder of the model that :func:`load` reads; models on the hub are downloaded."""
    path = SHIPPED.get(str(path_or_name)) or user_path(path_or_name)
    if path.is_file():
        fail(str(path), "a folder", "a file", "read authors' *.pth.tar files with `bcls.models.import_checkpoint`")
    for candidate in (path, path / "checkpoints" / "best", path / "checkpoints" / "last"):
        if is_model_folder(candidate):
            return candidate
    if path.is_dir():
        return path  # reading it raises an error that names the missing file
    if not isinstance(path_or_name, str) or not HUB_NAME.fullmatch(path_or_name):
        expected = "'photo', 'photo-fast', the folder of a model or of a run, or a hub name 'owner/model'"
        hint = "check the spelling; if it was moved, set its location with --model"
        fail("model", expected, repr(str(path_or_name)), hint)
    return _download(path_or_name)


def _download(name: str) -> Path:
    hub = require("huggingface_hub", "hub", "loading a model from the Hugging Face Hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=_FILES))
    except (OSError, ValueError) as error:
        # The hub's messages have many lines; the full text stays in the exception chain.
        reason = str(error).strip().split("\n", 1)[0]
        message = f"`model`: expected a folder or a model on the hub, got {name!r}; {reason}"
        raise ValueError(message) from error
