"""Import of the authors' ``*.pth.tar`` checkpoints of VSE++, SGR and SAF, without running code from them."""

import argparse
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bcls._core.errors import fail, reason_of
from bcls.data.vocabulary import Vocabulary
from bcls.models.loading import build

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel

#: Prefixes of tensor names in the authors' checkpoints -> ours; none is a prefix of another.
_PREFIXES = {
    "fc.": "fc.",
    "embed.": "reader.embed.",
    "rnn.": "reader.ahead.",
    "cap_rnn.": "reader.ahead.",
    "v_global_w.embedding_local.0.": "image_attention.local.",
    "v_global_w.embedding_local.1.": "image_attention.local_norm.",
    "v_global_w.embedding_global.0.": "image_attention.whole.",
    "v_global_w.embedding_global.1.": "image_attention.whole_norm.",
    "v_global_w.embedding_common.0.": "image_attention.common.",
    "t_global_w.embedding_local.0.": "text_attention.local.",
    "t_global_w.embedding_global.0.": "text_attention.whole.",
    "t_global_w.embedding_common.0.": "text_attention.common.",
    "sim_tranloc_w.": "head.local.",
    "sim_tranglo_w.": "head.whole.",
    "sim_eval_w.": "head.score.",
    "SGR_module.": "head.steps.",
    "SAF_module.attn_sim_w.": "head.filter.",
    "SAF_module.bn.": "head.norm.",
}
#: Layers of a graph reasoning step.
_LAYERS = {"graph_query_w": "query", "graph_key_w": "key", "sim_graph_w": "out"}
_LAYOUT = "it should hold `model`, a list of the state dicts of images, captions and, for SGR and SAF, similarity"
_UNSUPPORTED = "this variant is not supported"
_OTHER_MODEL = "the checkpoint is of another model"


def import_checkpoint(path: str | Path, *, vocabulary: Vocabulary | str | Path | None = None) -> "RetrievalModel":
    """Read a checkpoint of VSE++, SGR or SAF as its authors' code writes it, on the CPU and in eval mode.

    Sizes are read from the weights. Only tensors, plain containers, numbers and the options' ``argparse.Namespace`` are
    read; anything else, code in particular, is an error. Both the zip format and the older one work.

    Args:
        path: The file, such as ``model_best.pth.tar``.
        vocabulary: The vocabulary with which the model was trained, or its JSON file; without it the model accepts
            token ids only.

    Raises:
        ValueError: The file is damaged, contains code, or is of a variant that is not supported; the message says
            which.
    """
    path = Path(path)
    content = read_tensors(path)
    states = content.get("model") if isinstance(content, Mapping) else None
    if not isinstance(states, list | tuple) or not all(isinstance(state, Mapping) for state in states):
        fail(str(path), "a checkpoint of VSE++, SGR or SAF", "something else", _LAYOUT)
    _check_tensors(path, states)
    options = vars(content["opt"]) if hasattr(content.get("opt"), "__dict__") else {}
    _check_options(path, options, states)
    renamed = rename_tensors(states)
    config = _read_config(path, renamed)
    words = vocabulary if vocabulary is None or isinstance(vocabulary, Vocabulary) else Vocabulary.read(vocabulary)
    try:
        model = build(config, vocabulary=words)
        # Old versions of torch did not store these counts, and they are not used.
        state = model.trained_state()
        counts = {name: value for name, value in state.items() if name.endswith("num_batches_tracked")}
        model.load_trained_state(counts | renamed)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return model.eval()


def rename_tensors(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The tensors of all state dicts under our names; unknown names stay, and are an error when they are loaded.

    Example:
        >>> rename_tensors([{"fc.bias": 1}, {"cap_rnn.bias_hh_l0_reverse": 2}, {"SGR_module.0.graph_key_w.bias": 3}])
        {'fc.bias': 1, 'reader.back.bias_hh_l0': 2, 'head.steps.0.key.bias': 3}
    """
    return {_rename(name): value for state in states for name, value in state.items()}


def _rename(name: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
    if prefix is None:
        return name
    renamed = _PREFIXES[prefix] + name.removeprefix(prefix)
    if renamed.endswith("_reverse"):
        renamed = renamed.removesuffix("_reverse").replace("reader.ahead.", "reader.back.")
    return ".".join(_LAYERS.get(part, part) for part in renamed.split("."))


def _check_tensors(path: Path, states: Any) -> None:
    """Check for tensors only, each stored in full: an expanded one would take far more memory than the file."""
    from torch import Tensor

    for state in states:
        for name, value in state.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                got = f"{type(value).__name__} at {name!r}"
                fail(str(path), "tensors by name in `model`", got, _OTHER_MODEL)
            if value.numel() * value.element_size() > value.untyped_storage().nbytes():
                got = f"{name!r} of shape {tuple(value.shape)} over {value.untyped_storage().nbytes()} bytes"
                fail(str(path), "tensors that are stored in full", got, "the checkpoint was not written by training")


def _check_options(path: Path, options: Mapping[str, Any], states: Any) -> None:
    """Check for variants that would load and give other scores."""
    supported = {"no_imgnorm": False, "no_txtnorm": False, "use_abs": False, "measure": "cosine", "num_layers": 1}
    for key, value in supported.items():
        found = options.get(key, value)
        if not isinstance(found, bool | int | str) or found != value:
            fail(str(path), f"`{key}` {value} among its options", found, _UNSUPPORTED)
    for name in (name for state in states for name in state):
        if name.startswith(("cnn.", "module.cnn.")):
            hint = "convert a checkpoint without the image network"
            fail(str(path), "a model on precomputed features", f"weights of a CNN ({name})", hint)
        if "_l1" in name:
            fail(str(path), "a GRU of one layer", name, _UNSUPPORTED)


def _read_config(path: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Model and sizes, from tensors under our names."""
    parts = {"sgr": "head.steps.", "saf": "head.filter."}
    name = next((name for name, part in parts.items() if any(key.startswith(part) for key in state)), "vsepp")
    try:
        width, features = state["fc.weight"].shape
        words, word_width = state["reader.embed.weight"].shape
        config = {"name": name, "features": features, "width": width, "words": words, "word_width": word_width}
        if name != "vsepp":
            config["similarity_width"] = state["head.local.weight"].shape[0]
    except KeyError as error:
        fail(str(path), f"a tensor {error} of {name}", "none", f"{_OTHER_MODEL} or truncated")
    except (IndexError, ValueError):
        fail(str(path), "matrices as weights", "a tensor with other axes", _OTHER_MODEL)
    if name == "sgr":
        config["steps"] = sum(key.endswith(".query.weight") for key in state)
    return config


#: A function name in torch's message about an object that it refuses to load.
_REFUSED = re.compile(r"GLOBAL (\w[\w.]*\.\w+)")
#: Maximum bytes of a line in a pickle, which is the name of a function; torch takes minutes over a much longer one.
_LONGEST_LINE = 200
#: Number types as numpy names them and as :mod:`struct` reads them.
_NUMBERS = {"f8": "<d", "f4": "<f", "i8": "<q", "i4": "<i", "b1": "<?"}


class _NumpyType:
    """Replaces numpy's dtype, which trusts the state that it is given and crashes on a damaged one."""

    def __init__(self, name: object = "", *_: object) -> None:
        self.name = str(name)

    def __setstate__(self, state: object) -> None:
        """Ignore the state: the name is sufficient."""


def _number(dtype: object, content: object) -> float | None:
    """Replaces numpy's function that rebuilds a number; ``None`` for types that training does not write."""
    form = _NUMBERS.get(dtype.name) if isinstance(dtype, _NumpyType) else None
    if form is None or not isinstance(content, bytes):
        return None
    value: float = struct.unpack(form, content)[0]
    return value


#: Allowed besides tensors and plain containers: the options, and numpy numbers (from two versions of numpy).
_ALLOWED: list[Any] = [
    argparse.Namespace,
    (_NumpyType, "numpy.dtype"),
    (_number, "numpy.core.multiarray.scalar"),
    (_number, "numpy._core.multiarray.scalar"),
]


def read_tensors(path: Path) -> Any:
    """Read a ``torch.save`` file, in the zip format or the older one, onto the CPU.

    Raises:
        ValueError: The file is missing or damaged, or holds something other than tensors, plain containers, numbers
            and an ``argparse.Namespace``; no code in it has been run then.
    """
    import torch

    expected, hint = "a complete checkpoint file", "copy the file again"
    if not path.is_file():
        fail(str(path), "a checkpoint file", "no such file", "check the path")
    if _has_long_line(path):
        fail(str(path), expected, "a name of thousands of letters", hint)
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if refused := _REFUSED.search(str(error)):
            got = f"a call of {refused[1]}"
            fail(str(path), "tensors and plain values", got, "such a file can run code, so it was not read")
        fail(str(path), expected, " ".join(str(error).split("\n", 1)[0].split())[:200], hint)
    except Exception as error:  # a damaged file raises a dozen types, from EOFError to zlib.error
        fail(str(path), expected, f"an unreadable file ({type(error).__name__}: {reason_of(error)})", hint)


class _LimitedLines:
    """A pickle file that ends at a line that is longer than any function name."""

    too_long = False

    def __init__(self, file: IO[bytes]) -> None:
        self.read, self._file = file.read, file

    def readline(self) -> bytes:
        line = self._file.readline(_LONGEST_LINE + 1)
        self.too_long = len(line) > _LONGEST_LINE
        return b"" if self.too_long else line


def _has_long_line(path: Path) -> bool:
    """Whether the pickles in a file have a line that is too long, as far as they can be read; nothing is run."""
    for file in _pickles(path):
        lines = _LimitedLines(file)
        # A damaged file raises a dozen types. Torch reads in the same order, so it reads no further than this does.
        with suppress(Exception):
            for _ in pickletools.genops(lines):  # type: ignore[arg-type]  # it only reads
                pass
        if lines.too_long:
            return True
    return False


def _pickles(path: Path) -> Iterator[IO[bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(".pkl"):
                    with archive.open(member) as file:
                        yield file
    except Exception:  # not an archive, or a damaged one
        with path.open("rb") as file:
            for _ in range(5):  # pickles before the tensors of the older format
                yield file
