"""Parts of transformers checkpoints, from folders and from the hub: safetensors only, no code of theirs."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError

from bcls._checks import fail
from bcls._extras import require
from bcls._files import user_path
from bcls._progress import no_bars
from bcls.data.text_files import read_json

Part = TypeVar("Part")


def transformers() -> ModuleType:
    """The library, or the message how to get it."""
    return require("transformers", "text", "a model with a transformers encoder")


def read_part(argument: str, source: str | Path, what: str, read: Callable[[], Part]) -> Part:
    """Call a reader of transformers and turn what it raises into one line.

    Raises:
        ValueError: There is no such checkpoint, or it cannot be reached or read.
    """
    try:
        return read()
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        # Its messages run over many lines; the whole stays in the chain.
        reason = str(error).strip().split("\n", 1)[0]
        message = f"`{argument}`: expected a folder or hub name with {what}, got {str(source)!r}; {reason}"
        raise ValueError(message) from error


def read_config(argument: str, source: str | Path) -> Any:
    """The checkpoint's ``config.json``."""
    library = transformers()
    return read_part(argument, source, "a config.json", lambda: library.AutoConfig.from_pretrained(_place(source)))


def read_weights(argument: str, source: str | Path, kind: Any) -> Any:
    """A model with its weights, float32 whatever they are stored in, in eval mode."""
    options = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
    with no_bars(transformers().utils.logging):
        return read_part(argument, source, "model.safetensors", lambda: kind.from_pretrained(_place(source), **options))


def read_tokenizer(argument: str, source: str | Path) -> Any:
    """The tokenizer."""
    library = transformers()
    return read_part(argument, source, "a tokenizer", lambda: library.AutoTokenizer.from_pretrained(_place(source)))


def read_json_part(source: str | Path, name: str) -> dict[str, Any]:
    """A small JSON file beside the weights; empty where there is none."""
    hub = require("transformers.utils", "text", "a model with a transformers encoder")
    path = hub.cached_file(_place(source), name, _raise_exceptions_for_missing_entries=False)
    if path is None:
        return {}
    content = read_json(Path(path))
    if not isinstance(content, dict):
        fail(str(path), "a JSON object", type(content).__name__, "copy the checkpoint again")
    return content


def _place(source: str | Path) -> str:
    # A folder that is there is meant, even where the hub has something of that name.
    return str(user_path(source)) if user_path(source).is_dir() else str(source)
