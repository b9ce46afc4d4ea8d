"""Small models and inputs for the tests of models."""

import torch

from bcls.data.vocabulary import Vocabulary
from bcls.models.config import build
from bcls.models.padded import Padded

VOCABULARY = Vocabulary.build(["a dog runs on the beach .", "two people eat lunch in a park ."], threshold=1)
CAPTIONS = ["a dog runs", "two people eat lunch in a park .", "the beach"]

#: The smallest sizes at which every part still does something.
SMALL = {"features": 5, "width": 6, "word_width": 4}
CROSS = {**SMALL, "similarity_width": 3, "dropout": 0.0}


def model(name, *, seed=0, vocabulary=VOCABULARY, **settings):
    torch.manual_seed(seed)
    made = build({"name": name, **(SMALL if name == "vsepp" else CROSS), **settings}, vocabulary=vocabulary)
    for parameter in made.parameters():
        if parameter.ndim < 2:
            torch.nn.init.normal_(parameter, std=0.3)  # biases that start at zero would hide a mistake
    for buffer_name, buffer in made.named_buffers():
        if buffer_name.endswith("running_mean"):
            buffer.normal_(std=0.2)
        elif buffer_name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    return made


def regions(count=4, number=36, *, width=5, seed=1, lengths=None):
    values = torch.randn(count, number, width, generator=torch.Generator().manual_seed(seed))
    return Padded(values, None if lengths is None else torch.tensor(lengths))


def codes(count, longest, lengths, *, width=6, seed=2, dtype=torch.float64):
    """Unit rows that need a gradient, zero behind the lengths."""
    values = torch.randn(count, longest, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    lengths = torch.tensor(lengths)
    values = torch.nn.functional.normalize(values, dim=-1) * (torch.arange(longest) < lengths[:, None])[..., None]
    return Padded(values.requires_grad_(), lengths)
