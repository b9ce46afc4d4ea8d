"""Files that turn captions into token numbers without this package."""

import json
from typing import Any

from bcls.models.base import RetrievalModel

#: Names of the files.
TOKENIZER, VOCABULARY = "tokenizer.json", "vocab.json"


def word_files(model: RetrievalModel) -> dict[str, str]:
    """The tokenizer or the vocabulary of a model, by file name; nothing where it knows token numbers only.

    A tokenizer is written with its longest caption and without padding, so that its reader need set nothing.
    """
    if model.vocabulary is not None:
        words = model.vocabulary.words
        content = {"word2idx": model.vocabulary.numbers, "idx2word": dict(enumerate(words)), "idx": len(words)}
        return {VOCABULARY: json.dumps(content, ensure_ascii=False)}
    encoder: Any = getattr(getattr(model, "text", None), "encoder", None)
    tokenizer = getattr(encoder, "tokenizer", None)
    if tokenizer is None:
        return {}
    from tokenizers import Tokenizer

    alone = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    alone.no_padding()
    alone.enable_truncation(encoder.longest)
    text: str = alone.to_str(pretty=True)
    return {TOKENIZER: text}
