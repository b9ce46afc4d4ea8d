"""A model from wherever it is: a folder, a training run, the package itself, or the hub."""

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from bcls._checks import fail
from bcls._extras import require
from bcls._files import HUB_NAME, user_path
from bcls.models.folder import is_model_folder, load_folder

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel

_FILES = ["*.json", "*.safetensors", "README.md", "encoder/*"]


def load(path_or_name: str | Path) -> "RetrievalModel":
    """Load a model, on the CPU and in eval mode.

    Args:
        path_or_name: The folder of a saved model; a run folder, of which the best checkpoint is taken, else the last;
            ``"photo"``, the model that ships in the package; or a name on the Hugging Face Hub, ``owner/model``.

    Raises:
        ValueError: There is no such model, or its files are damaged or do not belong together.
        MissingExtraError: A hub name without the extra ``hub``.
    """
    if path_or_name == "photo":
        return _photo()
    path = user_path(path_or_name)
    if path.is_file():
        fail(str(path), "a folder", "a file", "authors' *.pth.tar files go through `bcls.models.import_checkpoint`")
    if is_model_folder(path):
        return load_folder(path)
    for checkpoint in (path / "checkpoints" / "best", path / "checkpoints" / "last"):
        if is_model_folder(checkpoint):
            return load_folder(checkpoint)
    if path.is_dir():
        return load_folder(path)  # says what is missing
    if not isinstance(path_or_name, str) or not HUB_NAME.fullmatch(path_or_name):
        expected = "'photo', the folder of a model or of a run, or a hub name 'owner/model'"
        fail("path_or_name", expected, repr(str(path_or_name)), "check the spelling")
    return _from_hub(path_or_name)


def _photo() -> "RetrievalModel":
    with resources.as_file(resources.files("bcls.models") / "photo") as folder:
        if not is_model_folder(folder):
            fail("path_or_name", "a model that is installed", "'photo', which is not", "install a release of bcls")
        return load_folder(folder)


def _from_hub(name: str) -> "RetrievalModel":
    hub = require("huggingface_hub", "hub", "loading a model from the Hugging Face Hub")
    try:
        folder = hub.snapshot_download(name, allow_patterns=_FILES)
    except (OSError, ValueError) as error:
        # The hub's own message runs over many lines; it stays in the chain for whoever needs it.
        reason = str(error).strip().split("\n", 1)[0]
        message = f"`path_or_name`: expected a folder or a model on the hub, got {name!r}; {reason}"
        raise ValueError(message) from error
    return load_folder(folder)
