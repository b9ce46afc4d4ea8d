"""The modules of a sentence-transformers model called directly: tokens once, batches without padding."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from bcls.labels._distinct import Part
from bcls.labels._grouping import group_by_length

if TYPE_CHECKING:
    import torch

# Texts that are tokenised in one call.
_AT_ONCE = 4096
_USUAL = ("Transformer", "Pooling", "Normalize")
# What a tokeniser may give; a model that is handed anything else is left to its own `encode`.
_KNOWN = {"input_ids", "attention_mask", "token_type_ids"}


def is_usual(model: Any) -> bool:
    """Whether a model is a transformer, a pooling and perhaps a normalisation, for texts and without a prompt."""
    names = tuple(type(module).__name__ for module in model)
    if names not in {_USUAL, _USUAL[:2]} or getattr(model, "default_prompt_name", None) is not None:
        return False
    features = tokenise(model, ["a text"])
    return {"input_ids", "attention_mask"} <= features.keys() <= _KNOWN


def tokenise(model: Any, texts: Sequence[str]) -> dict[str, "torch.Tensor"]:
    """Tokens of texts as the model's own ``encode`` makes them: ``(n, W)`` tensors."""
    # `preprocess` replaced `tokenize` in release 5.
    features = (model.preprocess if hasattr(model, "preprocess") else model.tokenize)(list(texts))
    return {name: value for name, value in features.items() if hasattr(value, "shape")}


def encode_usual(model: Any, texts: Sequence[str], precision: str) -> Iterator[Part]:
    """Encode different texts in batches of like length.

    Args:
        model: A model that :func:`is_usual`.
        texts: n texts.
        precision: ``"float32"``, or ``"bfloat16"`` for the matrix products.

    Yields:
        Rows of a batch, and their ``(b, d)`` float32 vectors, as the model gives them.
    """
    import torch

    rows = [row for start in range(0, len(texts), _AT_ONCE) for row in _rows(model, texts[start : start + _AT_ONCE])]
    lengths = np.array([len(next(iter(row.values()))) for row in rows], dtype=np.int64)
    fill = getattr(model.tokenizer, "pad_token_id", None) or 0
    # One context around all batches: autocast then converts the weights once.
    cast = torch.autocast(model.device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
    with torch.inference_mode(), cast:
        for chosen in group_by_length(lengths):
            batch = [rows[row] for row in chosen]
            features = {name: _stack([row[name] for row in batch], fill * (name == "input_ids")) for name in batch[0]}
            output = model({name: value.to(model.device) for name, value in features.items()})
            yield chosen, output["sentence_embedding"].float().cpu().numpy()


def _rows(model: Any, texts: Sequence[str]) -> list[dict[str, "torch.Tensor"]]:
    """Each text's own tokens, without those that filled it up to the longest."""
    import torch

    features = tokenise(model, texts)
    kept = features["attention_mask"].bool()
    sizes = kept.sum(dim=1).tolist()
    parts = {name: torch.split(value[kept], sizes) for name, value in features.items()}
    return [{name: part[row] for name, part in parts.items()} for row in range(len(texts))]


def _stack(tokens: Sequence["torch.Tensor"], fill: int) -> "torch.Tensor":
    import torch

    if len(tokens[0]) == len(tokens[-1]):  # sorted by length, so all are equal
        return torch.stack(list(tokens))
    return torch.nn.utils.rnn.pad_sequence(list(tokens), batch_first=True, padding_value=fill)
