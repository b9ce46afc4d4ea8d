"""The authors' names of tensors, and ours."""

from collections.abc import Iterable, Mapping
from typing import Any

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
