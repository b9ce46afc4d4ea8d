"""The authors' names of tensors, and ours.

The authors' checkpoints, ``*.pth.tar``, as models of this library; no code in them is run.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcls._core.errors import fail
from bcls.data.vocabulary import Vocabulary
from bcls.models.config import DETECTOR_REGIONS, build

if TYPE_CHECKING:
    from bcls.models.base import RetrievalModel

#: Their prefix -> ours; none begins with another.
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
#: Inside a step of graph reasoning.
_LAYERS = {"graph_query_w": "query", "graph_key_w": "key", "sim_graph_w": "out"}


def own_names(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The tensors of all state dicts by our names; unknown ones keep theirs and are refused when they are loaded.

    Example:
        >>> own_names([{"fc.bias": 1}, {"cap_rnn.bias_hh_l0_reverse": 2}, {"SGR_module.0.graph_key_w.bias": 3}])
        {'fc.bias': 1, 'reader.back.bias_hh_l0': 2, 'head.steps.0.key.bias': 3}
    """
    return {_own_name(name): value for state in states for name, value in state.items()}


def _own_name(name: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
    if prefix is None:
        return name
    own = _PREFIXES[prefix] + name.removeprefix(prefix)
    if own.endswith("_reverse"):
        own = own.removesuffix("_reverse").replace("reader.ahead.", "reader.back.")
    return ".".join(_LAYERS.get(part, part) for part in own.split("."))


_LAYOUT = "it should hold `model`, a list of the state dicts of images, captions and, for SGR and SAF, similarity"


def import_checkpoint(path: str | Path, *, vocabulary: Vocabulary | str | Path | None = None) -> "RetrievalModel":
    """Read a checkpoint of VSE++, SGR or SAF as its authors' code writes it, on the CPU and in eval mode.

    Sizes come from the weights. Tensors, plain containers, numbers and the options' ``argparse.Namespace`` are all that
    is read from the file: anything else, code above all, is refused. Zip files and the format before them both work.

    Args:
        path: Such as ``model_best.pth.tar``.
        vocabulary: The vocabulary the model was trained with, or its JSON file; without it the model takes token
            numbers only.

    Raises:
        ValueError: The file is damaged, holds code, or is of a model with options that are not here; the message says
            what.
    """
    from bcls.models.safe_pickle import read_tensors

    path = Path(path)
    content = read_tensors(path)
    states = content.get("model") if isinstance(content, Mapping) else None
    if not isinstance(states, list | tuple) or not all(isinstance(state, Mapping) for state in states):
        fail(str(path), "a checkpoint of VSE++, SGR or SAF", "something else", _LAYOUT)
    _check_tensors(path, states)
    options = vars(content["opt"]) if hasattr(content.get("opt"), "__dict__") else {}
    _check_options(path, options, states)
    config, state = _translated(path, states)
    words = vocabulary if vocabulary is None or isinstance(vocabulary, Vocabulary) else Vocabulary.read(vocabulary)
    try:
        model = build(config, vocabulary=words)
        # Old versions of torch did not count; the count is not used.
        counts = {name: one for name, one in model.trained_state().items() if name.endswith("num_batches_tracked")}
        model.load_trained_state(counts | state)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return model.eval()


def _check_tensors(path: Path, states: Any) -> None:
    """Refuse entries that are no tensors, or that take more memory than the file has of them."""
    from torch import Tensor

    for state in states:
        for name, value in state.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                got = f"{type(value).__name__} at {name!r}"
                fail(str(path), "tensors by name in `model`", got, "the checkpoint is of another model")
            if value.numel() * value.element_size() > value.untyped_storage().nbytes():
                got = f"{name!r} of shape {tuple(value.shape)} over {value.untyped_storage().nbytes()} bytes"
                fail(str(path), "tensors that are stored in full", got, "the checkpoint was not written by training")


def _check_options(path: Path, options: Mapping[str, Any], states: Any) -> None:
    """Refuse what would load and give other scores."""
    off = {"no_imgnorm": False, "no_txtnorm": False, "use_abs": False, "measure": "cosine", "num_layers": 1}
    for key, value in off.items():
        found = options.get(key, value)
        if not isinstance(found, bool | int | str) or found != value:
            fail(str(path), f"`{key}` {value} among its options", found, "this variant is not in the library")
    for state in states:
        for name in state:
            if name.startswith(("cnn.", "module.cnn.")):
                fail(
                    str(path), "a model on precomputed features", f"weights of a CNN ({name})", "only its heads differ"
                )
            if "_l1" in name:
                fail(str(path), "a GRU of one layer", name, "this variant is not in the library")


def _translated(path: Path, states: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    name = _name(path, states)
    try:
        images, texts = states[0], states[1]
        config: dict[str, Any] = {
            "name": name,
            "features": images["fc.weight"].shape[1],
            "width": images["fc.weight"].shape[0],
            "words": texts["embed.weight"].shape[0],
            "word_width": texts["embed.weight"].shape[1],
        }
        if name == "vsepp":
            return config, own_names(states)
        similarity = states[2]
        config["similarity_width"] = similarity["sim_tranloc_w.weight"].shape[0]
        if name == "sgr":
            config["steps"] = sum(key.endswith("graph_query_w.weight") for key in similarity)
        regions = similarity["v_global_w.embedding_local.1.weight"].shape[0]
    except KeyError as error:
        fail(str(path), f"a tensor {error} of {name}", "none", "the checkpoint is of another model or cut off")
    except IndexError:
        fail(str(path), "matrices as weights", "a tensor with too few axes", "the checkpoint is of another model")
    if regions != DETECTOR_REGIONS:
        fail(str(path), f"{DETECTOR_REGIONS} regions", regions, "the authors' code has no other number")
    return config, own_names(states)


def _name(path: Path, states: Any) -> str:
    names = {key for state in states for key in state}
    heads = {"sgr": "SGR_module.", "saf": "SAF_module."}
    for name, prefix in heads.items():
        if len(states) == 3 and any(key.startswith(prefix) for key in names):
            if "cap_rnn.weight_ih_l0_reverse" not in names:
                fail(str(path), "a GRU in both directions", "one direction", "this variant is not in the library")
            return name
    if len(states) != 2 or "rnn.weight_ih_l0" not in names or "rnn.weight_ih_l0_reverse" in names:
        got = ", ".join(sorted(names)[:4]) + ", ..." if names else "no tensors"
        fail(str(path), "a checkpoint of VSE++, SGR or SAF", got, _LAYOUT)
    return "vsepp"
