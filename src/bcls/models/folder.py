"""A saved model: a folder with config, weights, vocabulary and model card, replaced as a whole and without pickle.

The base class of models saves and loads itself with these functions, so they do not import it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from bcls._core.errors import fail
from bcls._core.extras import sha256_of
from bcls._core.files import beside, replace_folder, write_whole
from bcls.data.text_files import read_json
from bcls.data.vocabulary import Vocabulary
from bcls.models.config import MODELS, DualConfig, SafConfig, VseppConfig, import_class, model_config, name_of

#: Names of the files.
CONFIG, WEIGHTS, VOCABULARY, CARD = "config.json", "model.safetensors", "vocab.json", "README.md"
#: Subfolder for config and tokenizer of an encoder that is not an installed package's.
ENCODER = "encoder"
#: Calibration of the scores, which a model may have; see :mod:`bcls.search.score_model`.
CALIBRATION = ("calibration.json", "calibration.safetensors")
#: Files that a saved model may have besides config and weights.
OPTIONAL = {VOCABULARY, CARD, ENCODER, *CALIBRATION}
#: Entries of the config beside the model's own settings: SHA-256 of the files, and the description of an ONNX export.
SHA256, ONNX = "sha256", "onnx"

#: Shape of a tensor; ``None`` for a size that the configuration does not determine.
Shape = tuple[int | None, ...]


def save_folder(model: Any, folder: str | Path) -> None:
    """Write a model into a folder of its own, replacing an earlier saved model.

    A folder cannot be replaced atomically: the new one is written completely under another name first, and
    :func:`load_folder` finds the model in every intermediate state.

    Args:
        model: A :class:`bcls.models.RetrievalModel`.
        folder: The folder.

    Raises:
        ValueError: The path is a file, or a folder with something other than a saved model.
    """
    folder = Path(folder)
    if not is_replaceable(folder, {CONFIG, WEIGHTS}, OPTIONAL, lambda config: config.get("name") in [*MODELS]):
        expected = "a new folder, or one with a saved model and nothing else"
        fail("folder", expected, folder, "choose another name: nothing is overwritten")
    replace_folder(folder, lambda new: write_files(model, new))


def write_files(model: Any, folder: Path, convert: Callable[[Any], Any] = lambda tensor: tensor) -> None:
    """Write the files of a model into an existing folder; other files in it stay.

    Args:
        model: The model.
        folder: The folder.
        convert: Applied to every tensor before it is written, such as a conversion to float16.
    """
    write_tensors(folder / WEIGHTS, {name: convert(value) for name, value in model.trained_state().items()})
    write_whole(folder / CARD, model_card(model))
    names = [WEIGHTS]
    if model.vocabulary is not None:
        model.vocabulary.write(folder / VOCABULARY)
        names.append(VOCABULARY)
    for name, content in model.files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, content)
        names.append(name)
    write_config(folder, plain_config(model), names)


def write_config(folder: Path, config: Mapping[str, Any], names: Iterable[str]) -> None:
    """Write ``config.json`` with the SHA-256 of the named files of the folder."""
    hashes = {name: sha256_of(folder / name) for name in names}
    write_whole(folder / CONFIG, json.dumps({**config, SHA256: hashes}, indent=2) + "\n")


def write_calibration(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files of :data:`CALIBRATION` into the folder of a model, and their SHA-256 into its config."""
    for name, content in contents.items():
        write_whole(folder / name, content)
    config = read_json(folder / CONFIG)
    config[SHA256] = config.get(SHA256, {}) | {name: sha256_of(folder / name) for name in contents}
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")


def check_hashes(folder: Path, hashes: Any, names: Iterable[str]) -> None:
    """Check that files are unchanged since they were written.

    Args:
        folder: The folder.
        hashes: SHA-256 by file name, from the config; files that it does not name are not checked.
        names: The files.

    Raises:
        ValueError: A file is missing, or has other contents.
    """
    for name in names:
        path, expected = folder / name, hashes.get(name) if isinstance(hashes, Mapping) else None
        if expected is None:
            continue
        if not path.is_file():
            fail(str(path), "a file of the model", "no such file", "copy the whole folder again")
        found = sha256_of(path)
        if found != expected:
            hint = "the file is damaged or of another model: copy the whole folder again"
            fail(str(path), f"a file with sha256 {expected}", found, hint)


def plain_config(model: Any) -> dict[str, Any]:
    """A model's configuration as plain values, with its registered name as ``name``."""
    name = {"name": name_of(model.config)}
    plain: dict[str, Any] = name | model.as_dict() | name
    return plain


def model_card(model: Any) -> str:
    """The model card, with the header that the Hugging Face Hub reads."""
    plain = plain_config(model)
    tags = ["image-text-retrieval", plain["name"]]
    header = {"library_name": "bcls", "pipeline_tag": "feature-extraction", "tags": tags}
    ids_only = model.vocabulary is None and plain.get("words") is not None
    template = (Path(__file__).parent / "templates" / "model_card.md").read_text(encoding="utf-8")
    return template.format(
        header=yaml.safe_dump(header, sort_keys=False).strip(),
        name=plain["name"],
        parameters=f"{sum(value.numel() for value in model.trained_state().values()):,}",
        texts="token ids with their lengths" if ids_only else "strings",
        config=json.dumps(plain, indent=2),
    )


def load_folder(folder: str | Path, kind: Any = object) -> Any:
    """Read a model that :func:`save_folder` wrote, on the CPU and in eval mode.

    Args:
        folder: The folder.
        kind: Required class of the model.

    Raises:
        ValueError: A file is missing or truncated, config, weights and vocabulary do not fit together, or the model is
            of another class; the message names the file and the difference.
    """
    given, folder = folder, _existing(Path(folder))
    plain = read_json(folder / CONFIG)
    if not isinstance(plain, dict):
        got = type(plain).__name__
        fail(str(folder / CONFIG), "a JSON object with the model's config", got, "save the model again")
    plain.pop(ONNX, None)
    hashes = plain.pop(SHA256, None)
    encoder = [name for name in hashes if name.startswith(f"{ENCODER}/")] if isinstance(hashes, Mapping) else []
    check_hashes(folder, hashes, (WEIGHTS, VOCABULARY, *encoder))
    path = folder / VOCABULARY
    vocabulary = Vocabulary.read(path) if path.exists() else None
    try:
        config = model_config(plain)
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from error
    weights = read_tensors(folder / WEIGHTS)
    _check_sizes(folder, config, weights, None if vocabulary is None else len(vocabulary))
    has_encoder = isinstance(config, DualConfig | SafConfig) and (folder / ENCODER).is_dir()
    model = build_any(config, vocabulary, folder if has_encoder else None)
    try:
        model.load_trained_state(weights)
    except ValueError as error:
        raise ValueError(f"{folder / WEIGHTS}: {error}") from error
    if not isinstance(model, kind):
        fail(str(given), f"a {kind.__name__}", f"a {type(model).__name__}", "`bcls.models.load` reads any model")
    return model.eval()


def build_any(config: Mapping[str, Any] | object, vocabulary: Vocabulary | None, folder: Path | None) -> Any:
    """Make a model of any registered class; see :func:`bcls.models.build`."""
    settings = model_config(config)
    options = {"vocabulary": vocabulary, "folder": folder}
    given = {key: value for key, value in options.items() if value is not None}
    return import_class(MODELS[name_of(settings)][1])(settings, **given)


def is_model_folder(folder: Path) -> bool:
    """Whether the folder holds a saved model, also one whose replacement was interrupted."""
    return any((candidate / CONFIG).is_file() for candidate in _candidates(folder))


def _candidates(folder: Path) -> tuple[Path, Path]:
    """The folder, and the one beside it that holds the model if its replacement was interrupted."""
    return folder, beside(folder)[1]


def _existing(folder: Path) -> Path:
    found = next((candidate for candidate in _candidates(folder) if (candidate / CONFIG).is_file()), None)
    if found is None:
        got = f"a folder without {CONFIG}" if folder.is_dir() else "no such folder"
        expected, hint = "a saved model, or a run with a checkpoint", "`bcls train` and `save_pretrained` write one"
        fail(str(folder), expected, got, hint)
    return found


def is_replaceable(
    folder: Path, required: set[str], optional: set[str], ours: Callable[[Mapping[str, Any]], bool]
) -> bool:
    """Whether writing to a folder loses nothing: it does not exist, is empty, or holds our own files only.

    Args:
        folder: The path; it may be a file.
        required: Names of files that must all be there, the config among them.
        optional: Names that may be there.
        ours: Whether a config is one that we wrote.
    """
    if not folder.exists():
        return True
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else None
    if not names:
        return names is not None
    if not required <= names <= required | optional:
        return False
    try:
        config = read_json(folder / CONFIG)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and ours(config)


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write a safetensors file."""
    from safetensors.torch import save

    # Copies: tied weights share memory, which the format does not allow.
    copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    write_whole(path, save(copies))


def read_tensors(path: Path) -> dict[str, Any]:
    """Read a safetensors file, onto the CPU.

    Raises:
        ValueError: It is missing or truncated.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not path.is_file():
        fail(str(path), "a safetensors file", "no such file", "copy the whole folder again")
    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        got = f"{path.stat().st_size} bytes that are not ({error})"
        fail(str(path), "a complete safetensors file", got, "copy the file again, or use another checkpoint")


def _check_sizes(folder: Path, config: Any, weights: dict[str, Any], words: int | None) -> None:
    """Compare the sizes in the config with the weights, before memory is allocated for the model."""
    for name, shape in expected_shapes(config, weights, words).items():
        found = tuple(weights[name].shape) if name in weights else None
        fits = found is not None and len(found) == len(shape)
        if found is None or not fits or any(a not in (None, b) for a, b in zip(shape, found, strict=True)):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            got = f"({sizes}) for {name!r}, and {'none' if found is None else found} in {WEIGHTS}"
            hint = "config and weights are of different models"
            fail(str(folder / CONFIG), "the sizes of the weights", got, hint)


def expected_shapes(config: Any, names: Iterable[str], words: int | None) -> dict[str, Shape]:
    """Tensor shapes that follow from a configuration; every size in the configuration occurs in one of them.

    Args:
        config: Configuration of a model; for models of your own the result is empty.
        names: Names of the stored tensors, to find LoRA adapters.
        words: Size of the vocabulary, if there is one.

    Example:
        >>> expected_shapes(VseppConfig(words=9, features=5, width=6, word_width=4), (), None)
        {'fc.weight': (6, 5), 'reader.embed.weight': (9, 4)}
    """
    if isinstance(config, DualConfig):
        return _dual_shapes(config, names, words)
    if not isinstance(config, VseppConfig | SafConfig):
        return {}
    features = None if getattr(config, "backbone", None) else config.features
    shapes: dict[str, Shape] = {"fc.weight": (config.width, features)}
    if getattr(config, "text", "gru") == "gru":
        shapes["reader.embed.weight"] = config.words or words, config.word_width
    else:
        shapes["reader.fc.weight"] = config.width, None
    if isinstance(config, VseppConfig):
        return shapes
    size, steps = config.similarity_width, getattr(config, "steps", 0)
    shapes["head.local.weight"] = size, config.width
    reasoning: dict[str, Shape] = {f"head.steps.{steps - 1}.query.weight": (size, size)} if steps else {}
    if name_of(config) != "sgraf":
        return shapes | reasoning
    parts = {"sgr.": shapes | reasoning, "saf.": shapes}
    return {prefix + name: shape for prefix, part in parts.items() for name, shape in part.items()}


def _dual_shapes(config: DualConfig, names: Iterable[str], words: int | None) -> dict[str, Shape]:
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
