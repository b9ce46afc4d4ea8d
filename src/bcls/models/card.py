"""The page that goes with a saved model: what it is and how to use it."""

import json
from typing import TYPE_CHECKING, Any

import yaml

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
