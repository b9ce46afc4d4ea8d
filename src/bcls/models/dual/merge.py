"""One dual encoder of several that were trained apart."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bcls._checks import fail
from bcls.models.dual.config import DualConfig
from bcls.models.dual.model import DualModel


def merge(
    models: Sequence[DualModel],
    weights: Sequence[float] | None = None,
    *,
    image: str | None = None,
    image_view: str = "whole",
) -> DualModel:
    r"""Put the heads of several models side by side: the scores of the result are the weighted means of theirs.

    .. math:: s(I, T) = \sum_p w_p \cos(v_p(I), t_p(T)) \Big/ \sum_p w_p

    Models that differ in nothing but the seed err in different places, so their mean errs less.

    Args:
        models: With frozen encoders, linear or ``mlp`` heads, and the same settings.
        weights: One for each model; left out, all the same.
        image: A backbone that takes the place of ``image: features``, the one that made the features.
        image_view: With ``image``: the view that the features were made with.

    Returns:
        A model with as many heads, in eval mode.

    Raises:
        ValueError: The models do not have the same settings, have trained encoders, or are merged already.
    """
    if not models:
        fail("models", "one model or more", "none", "give the models to put together")
    first = models[0].config
    for model in models:
        if model.config != first:
            fail("models", "models with the same settings", "others", "give runs that differ in their seeds alone")
    if first.tune_image or first.tune_text or first.text == "gru" or first.heads > 1:
        got = "trained encoders" if first.heads == 1 else f"{first.heads} heads already"
        fail("models", "models with frozen encoders and one head on each side", got, "merge models of `dual` heads")
    if image is not None and first.image != "features":
        fail("image", "none: the models have an image encoder", repr(image), "leave it out")
    shares = tuple(float(one) for one in weights or ())
    config: DualConfig = replace(first, heads=len(models), width=first.width * len(models), head_weights=shares)
    if image is not None:
        config = replace(config, image=image, image_view=image_view, features=None)
    merged = DualModel(config)
    states = [model.trained_state() for model in models]
    joined = {name: _side_by_side(name, [state[name] for state in states]) for name in states[0]}
    # A backbone that takes the place of features keeps its own weights.
    merged.load_trained_state(merged.trained_state() | joined)
    return merged.eval()


def _side_by_side(name: str, values: list[Tensor]) -> Tensor:
    if len(values) == 1 or not name.startswith(("image.head.", "text.head.")):
        return values[0]
    # The second layer of a perceptron reads the part of the first that is its own.
    return torch.stack(values) if ".mlp.2." in name else torch.cat(values)
