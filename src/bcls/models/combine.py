"""Several trained dual encoders merged into one."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bcls._core.errors import fail
from bcls.models.config import DualConfig
from bcls.models.dual import DualModel


def merge(
    models: Sequence[DualModel], weights: Sequence[float] = (), *, image: str | None = None, image_view: str = "whole"
) -> DualModel:
    r"""Combine the heads of several models: the scores of the result are the weighted means of theirs.

    .. math:: s(I, T) = \sum_p w_p \cos(v_p(I), t_p(T)) \Big/ \sum_p w_p

    Models that differ only in the seed make different errors, so their mean makes fewer.

    Args:
        models: Models with frozen encoders, linear or ``mlp`` heads, and the same configuration.
        weights: One for each model. Default: equal weights.
        image: A backbone that replaces ``image: features``, the one that extracted the features.
        image_view: With ``image``: the view with which the features were extracted.

    Returns:
        A model with as many heads, in eval mode.

    Raises:
        ValueError: The configurations differ, encoders are trained, or a model is merged already.
    """
    if not models:
        fail("models", "one model or more", "none", "pass the models to merge")
    first = models[0].config
    if any(model.config != first for model in models):
        fail("models", "models with the same configuration", "different ones", "pass runs that differ in the seed only")
    if first.tune_image or first.tune_text or first.text == "gru" or first.heads > 1:
        got = "trained encoders" if first.heads == 1 else f"{first.heads} heads already"
        fail("models", "models with frozen encoders and one head on each side", got, "pass models with trained heads")
    if image is not None and first.image != "features":
        fail("image", "none, since the models have an image encoder", repr(image), "leave it out")
    shares = tuple(float(weight) for weight in weights or ())
    width = first.width * len(models)
    config: DualConfig = replace(first, heads=len(models), width=width, head_weights=shares, unimodal=0)
    if image is not None:
        config = replace(config, image=image, image_view=image_view, features=None)
    merged = DualModel(config)
    states = [model.trained_state() for model in models]
    names = [name for name in states[0] if not name.startswith("unimodal.")]
    combined = {name: _combine(name, [state[name] for state in states]) for name in names}
    # A backbone that replaces features keeps its own weights.
    merged.load_trained_state(merged.trained_state() | combined)
    return merged.eval()


def _combine(name: str, values: list[Tensor]) -> Tensor:
    if len(values) == 1 or not name.startswith(("image.head.", "text.head.")):
        return values[0]
    # The second layer of a perceptron reads only its own part of the first layer's output.
    return torch.stack(values) if ".mlp.2." in name else torch.cat(values)
