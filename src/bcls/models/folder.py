"""The page that goes with a saved model: what it is and how to use it.

Shapes that a config tells of its model's tensors, to be held against the weights before memory is taken.

A model as a folder: config, weights, vocabulary and a card; written whole or not at all, without pickle.

A model from wherever it is: a folder, a training run, the package itself, or the hub.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bcls._core.errors import fail
from bcls._core.extras import require
from bcls._core.files import HUB_NAME, beside, replace_folder, user_path, write_whole
from bcls.data.text_files import read_json
from bcls.data.vocabulary import Vocabulary
from bcls.models.config import (
    MODELS,
    DualConfig,
    SafConfig,
    SgrafConfig,
    SgrConfig,
    VseppConfig,
    build,
    model_config,
    name_of,
)

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel


def card(model: "RetrievalModel", plain: dict[str, Any], *, with_words: bool) -> str:
    """A model card with the header that the Hugging Face Hub reads.

    Args:
        model: The model.
        plain: Its config as plain values, ``name`` among them.
        with_words: Whether a vocabulary goes with it.
    """
    header = yaml.safe_dump(
        {"library_name": "bcls", "pipeline_tag": "feature-extraction", "tags": ["image-text-retrieval", plain["name"]]},
        sort_keys=False,
    )
    trained = sum(value.numel() for value in model.trained_state().values())
    numbers_only = not with_words and plain.get("words") is not None
    texts = "token numbers with their lengths" if numbers_only else "strings"
    return _PAGE.format(
        header=header.strip(),
        name=plain["name"],
        trained=f"{trained:,}",
        texts=texts,
        config=json.dumps(plain, indent=2),
    )


_PAGE = """---
{header}
---

# {name}, an image-text retrieval model

Scores images against captions; {trained} numbers are stored here. Made with [bcls](https://pypi.org/project/bcls/).

```python
from bcls.models import load

model = load("THIS FOLDER")
scores = model.similarity(images, texts)  # rows are images, columns are captions
```

`texts` are {texts}; `images` are what the config below says: features, or pictures where it names a backbone.

## Config

```json
{config}
```
"""


#: ``None`` for a size that the config does not tell.
Shape = tuple[int | None, ...]


def told_shapes(config: Any, names: Iterable[str], words: int | None) -> dict[str, Shape]:
    """Shapes of tensors by name: enough of them that every size among the settings stands in one.

    Args:
        config: Of a model; of kinds without large sizes nothing is told.
        names: Of the tensors that are stored, to find the adapters among them.
        words: Size of the vocabulary, where there is one.

    Example:
        >>> told_shapes(VseppConfig(words=9, features=5, width=6, word_width=4), (), None)
        {'fc.weight': (6, 5), 'reader.embed.weight': (9, 4)}
    """
    if isinstance(config, DualConfig):
        return _dual(config, names, words)
    if isinstance(config, VseppConfig):
        features = config.features if config.backbone is None else None
        return {
            "fc.weight": (config.width, features),
            "reader.embed.weight": (config.words or words, config.word_width),
        }
    if isinstance(config, SgrafConfig):
        parts = {"sgr.": _cross(config, words, config.steps), "saf.": _cross(config, words, 0)}
        return {prefix + name: shape for prefix, part in parts.items() for name, shape in part.items()}
    if isinstance(config, SafConfig):
        return _cross(config, words, config.steps if isinstance(config, SgrConfig) else 0)
    return {}


def _cross(config: SafConfig, words: int | None, steps: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {
        "fc.weight": (config.width, config.features),
        "reader.embed.weight": (config.words or words, config.word_width),
        "head.local.weight": (config.similarity_width, config.width),
    }
    if steps:
        shapes[f"head.steps.{steps - 1}.query.weight"] = (config.similarity_width, config.similarity_width)
    return shapes


def _dual(config: DualConfig, names: Iterable[str], words: int | None) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    gru = config.text == "gru"
    sides = (("image", config.image_head, config.features), ("text", config.text_head, config.states if gru else None))
    for side, head, width in sides:
        if head != "none":
            shapes[f"{side}.head.linear.weight"] = (config.width, width)
        if head == "mlp" and config.heads > 1:
            part = config.width // config.heads
            shapes[f"{side}.head.mlp.2.weight"] = (config.heads, part, part)
    if gru:
        shapes["text.encoder.reader.embed.weight"] = (config.words or words, config.word_width)
        shapes["text.encoder.reader.ahead.weight_hh_l0"] = (3 * config.states, config.states)
    if config.lora_rank:
        adapters = [name for name in names if ".lora_A." in name]
        shapes |= dict.fromkeys(adapters or ["an adapter's lora_A"], (config.lora_rank, None))
    return shapes


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
