"""A model as a folder: config, weights, vocabulary and a card; written whole or not at all, without pickle."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcls._checks import fail
from bcls._files import beside, replace_folder, write_whole
from bcls.data.text_files import read_json
from bcls.data.vocabulary import Vocabulary
from bcls.models._sizes import told_shapes
from bcls.models.card import card
from bcls.models.registry import MODELS, build, model_config, name_of

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel

CONFIG, WEIGHTS, WORDS, CARD = "config.json", "model.safetensors", "vocab.json", "README.md"
#: Where a dual encoder keeps the settings and the tokeniser of an encoder that is no installed package's.
ENCODER = "encoder"


def save_folder(model: "RetrievalModel", folder: str | Path) -> None:
    """Write a model into a folder of its own, replacing the whole folder where there is one.

    A folder cannot be replaced in one step: the new one is complete under another name before it takes the place of the
    old one, and :func:`load_folder` finds the model in every state in between.

    Raises:
        ValueError: A file has that name, or a folder with something else than a saved model in it.
    """
    folder = Path(folder)
    files, beside_them = {CONFIG, WEIGHTS}, {WORDS, CARD, ENCODER}
    if folder.exists() and not is_replaceable(folder, files, beside_them, lambda told: told.get("name") in [*MODELS]):
        expected = "a new folder, or one that holds a saved model and nothing else"
        fail("folder", expected, folder, "choose another name: nothing is overwritten")
    replace_folder(folder, lambda new: write_files(model, new))


def write_files(model: "RetrievalModel", folder: Path) -> None:
    """Write the files of a model into a folder that exists, beside whatever else is in it."""
    from safetensors.torch import save

    # Copies: tied weights share memory, which the format does not allow.
    state = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in model.trained_state().items()}
    plain = plain_config(model)
    write_whole(folder / WEIGHTS, save(state))
    write_whole(folder / CONFIG, json.dumps(plain, indent=2) + "\n")
    write_whole(folder / CARD, card(model, plain, with_words=model.vocabulary is not None))
    if model.vocabulary is not None:
        model.vocabulary.write(folder / WORDS)
    for name, content in model.files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, content)


def plain_config(model: "RetrievalModel") -> dict[str, Any]:
    """A model's config as plain values, under its name in the registry, whatever the config calls itself."""
    name = {"name": name_of(model.config)}
    return name | model.as_dict() | name


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
    try:
        config = model_config(plain)
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from error
    weights = _read_weights(folder / WEIGHTS)
    _check_sizes(folder, config, weights, vocabulary)
    kept = folder if name_of(config) == "dual" and (folder / ENCODER).is_dir() else None
    model = build(config, vocabulary=vocabulary, folder=kept)
    try:
        model.load_trained_state(weights)
    except ValueError as error:
        raise ValueError(f"{folder / WEIGHTS}: {error}") from error
    return model.eval()


def is_model_folder(folder: Path) -> bool:
    """Whether there is a model, or one whose replacing was cut short."""
    return any((place / CONFIG).is_file() for place in _places(folder))


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


def _check_sizes(folder: Path, config: Any, weights: dict[str, Any], vocabulary: Vocabulary | None) -> None:
    """Refuse a config that asks for other sizes than the weights have, before memory is taken for them."""
    for name, shape in told_shapes(config, weights, None if vocabulary is None else len(vocabulary)).items():
        found = tuple(weights[name].shape) if name in weights else None
        if (
            found is None
            or len(found) != len(shape)
            or any(a not in (None, b) for a, b in zip(shape, found, strict=True))
        ):
            told = ", ".join("any" if one is None else str(one) for one in shape)
            got = f"({told}) for {name!r}, and {'none' if found is None else found} in {WEIGHTS}"
            remedy = "the config and the weights are of two models"
            fail(str(folder / CONFIG), "sizes that the weights have", got, remedy)


def _places(folder: Path) -> tuple[Path, Path]:
    """Where a model may be: in its folder, or beside it where replacing was cut short."""
    return folder, beside(folder)[1]


def _present(folder: Path) -> Path:
    found = next((place for place in _places(folder) if (place / CONFIG).is_file()), None)
    if found is None:
        got = f"a folder without {CONFIG}" if folder.is_dir() else "no such folder"
        fail(str(folder), "the folder of a saved model", got, "`save_pretrained` writes one")
    return found


def is_replaceable(folder: Path, needed: set[str], others: set[str], ours: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Whether a folder is empty, or holds what we wrote and nothing else, so that nobody misses it.

    Args:
        folder: What is there; it may be a file.
        needed: Names of files that are all there, the config among them.
        others: Names that may be there.
        ours: Whether a config is one that we wrote.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else None
    if not names:
        return names is not None
    if not needed <= names <= needed | others:
        return False
    try:
        told = read_json(folder / CONFIG)
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and ours(told)
