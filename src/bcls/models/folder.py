"""A model as a folder: config, weights, vocabulary and a card; written whole or not at all, without pickle."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcls._checks import fail
from bcls._files import beside, replace_folder, write_whole
from bcls.data.text_files import read_json
from bcls.data.vocabulary import Vocabulary
from bcls.models.card import card
from bcls.models.registry import build, model_config, name_of

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel

CONFIG, WEIGHTS, WORDS, CARD = "config.json", "model.safetensors", "vocab.json", "README.md"
#: Where a dual encoder keeps the settings and the tokeniser of an encoder that is no installed package's.
ENCODER = "encoder"
#: Settings of the recurrent models that tensors are as large as.
_SIZES = frozenset({"words", "features", "width", "word_width", "similarity_width", "regions", "steps"})


def save_folder(model: "RetrievalModel", folder: str | Path) -> None:
    """Write a model into a folder of its own, replacing the whole folder where there is one.

    A folder cannot be replaced in one step: the new one is complete as ``NAME.new`` before the old one becomes
    ``NAME.old``, and :func:`load_folder` finds the model in every state in between.

    Raises:
        ValueError: Something else than a model's folder, or a file, has that name.
    """
    folder = Path(folder)
    if folder.exists() and not _replaceable(folder):
        fail("folder", "a new folder, or one that holds a model", folder, "choose another name: nothing is overwritten")
    replace_folder(folder, lambda new: write_files(model, new))


def write_files(model: "RetrievalModel", folder: Path) -> None:
    """Write the files of a model into a folder that exists, beside whatever else is in it."""
    from safetensors.torch import save

    # Copies: tied weights share memory, which the format does not allow.
    state = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in model.trained_state().items()}
    plain = {"name": name_of(model.config), **model.as_dict()}
    write_whole(folder / WEIGHTS, save(state))
    write_whole(folder / CONFIG, json.dumps(plain, indent=2) + "\n")
    write_whole(folder / CARD, card(model, plain, with_words=model.vocabulary is not None))
    if model.vocabulary is not None:
        model.vocabulary.write(folder / WORDS)
    for name, content in model.files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, content)


def load_folder(folder: str | Path) -> "RetrievalModel":
    """Read a model that :func:`save_folder` wrote; on the CPU, in eval mode.

    Raises:
        ValueError: A file is missing or cut off, or config, weights and vocabulary do not belong together; the message
            says which name or number differs.
    """
    folder = _present(Path(folder))
    plain = read_json(folder / CONFIG)
    if not isinstance(plain, dict):
        fail(
            str(folder / CONFIG), "a JSON object with the model's config", type(plain).__name__, "save the model again"
        )
    words = folder / WORDS
    vocabulary = Vocabulary.read(words) if words.exists() else None
    config = model_config(plain)
    weights = _read_weights(folder / WEIGHTS)
    _check_sizes(folder, config, weights)
    model = build(config, vocabulary=vocabulary, folder=folder if (folder / ENCODER).is_dir() else None)
    try:
        model.load_trained_state(weights)
    except ValueError as error:
        raise ValueError(f"{folder / WEIGHTS}: {error}") from error
    return model.eval()


def is_model_folder(folder: Path) -> bool:
    """Whether there is a model, or one whose replacing was cut short."""
    return any((place / CONFIG).is_file() for place in (folder, beside(folder)[1]))


def _read_weights(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not path.is_file():
        fail(str(path), "the model's weights", "no such file", "copy the whole folder again")
    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        size = path.stat().st_size
        fail(str(path), "a whole safetensors file", f"{size} bytes that are not ({error})", "copy the file again")


def _check_sizes(folder: Path, config: Any, weights: dict[str, Any]) -> None:
    """Refuse a config that asks for more memory than the weights have numbers, before it is taken."""
    from bcls.models.config import SafConfig, VseppConfig

    stored = sum(value.numel() for value in weights.values())
    sizes = {key: value for key, value in vars(config).items() if isinstance(value, int) and key in _SIZES}
    if not isinstance(config, VseppConfig | SafConfig) or sizes.get("steps", 0) > len(weights):
        sizes = {key: value for key, value in sizes.items() if key == "steps"}
    if getattr(config, "backbone", None) is not None:
        sizes.pop("features", None)
    pairs = [("features", "width"), ("words", "word_width"), ("width", "word_width"), ("similarity_width", "width")]
    needed = max((sizes.get(one, 1) * sizes.get(other, 1) for one, other in pairs), default=0)
    if needed > stored or max(sizes.values(), default=0) > max(stored, len(weights)):
        got = f"{stored} numbers in {WEIGHTS}"
        fail(str(folder / CONFIG), "sizes that the weights have", got, "the config and the weights are of two models")


def _present(folder: Path) -> Path:
    _, old = beside(folder)
    found = folder if (folder / CONFIG).is_file() or not (old / CONFIG).is_file() else old
    if not (found / CONFIG).is_file():
        got = f"a folder without {CONFIG}" if folder.is_dir() else "no such folder"
        fail(str(folder), "the folder of a saved model", got, "`save_pretrained` writes one")
    return found


def _replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / CONFIG).is_file() or not any(folder.iterdir()))
