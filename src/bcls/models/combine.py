"""A part of a dual encoder that is solved for, not trained: the image in the space of the caption encoder.

One dual encoder of several that were trained apart.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from bcls._core.errors import fail
from bcls.models.config import DualConfig
from bcls.models.dual import DualModel
from bcls.models.dual_heads import Head


def label_space_part(
    like: DualModel, images: Tensor, texts: Tensor, image_of_caption: Tensor, ridge: float = 1.0
) -> DualModel:
    r"""Regress the mean vector of an image's captions on its features.

    .. math::
        v(I) = W (x_I - \bar x), \quad t(T) = y_T - \bar y, \quad W = \arg\min_W \sum_I \lVert W (x_I - \bar x)
            - (\bar y_I - \bar y) \rVert^2 + \lambda \lVert W \rVert^2

    where :math:`y` are the unit vectors of the frozen caption encoder and :math:`\bar y_I` is their mean over the
    captions of image I. Where that encoder also makes the labels, this is their geometry, distilled: the score of a
    caption is its expected label up to a constant. Merged with trained heads by :func:`bcls.models.combine.merge`.

    Args:
        like: A model with the same frozen encoders; the result has its settings.
        images: ``(N, d)`` features of the training images.
        texts: ``(C, e)`` features of their captions, e at most the width.
        image_of_caption: ``(C,)`` number of each caption's image; every image has one.
        ridge: :math:`\lambda`, as a share of the mean variance of a feature, summed over the images.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: The width is below that of the captions' features, heads are missing, or an image has no caption.
    """
    config = like.config
    size, heads = texts.shape[1], (like.image.head.linear, like.text.head.linear)
    if config.width < size or None in heads or config.heads > 1:
        expected = f"one head on each side with a width of at least {size}"
        fail("like", expected, f"{config.heads} of width {config.width}", "train such heads")
    _check_owners(image_of_caption, len(images), len(texts))
    vectors = functional.normalize(texts.double(), dim=1)
    counts = torch.bincount(image_of_caption, minlength=len(images)).double()
    means = torch.zeros(len(images), size, dtype=torch.float64)
    means.index_add_(0, image_of_caption, vectors)
    means /= counts[:, None]
    centre_x, centre_y = images.double().mean(0), means.mean(0)
    x, y = images.double() - centre_x, means - centre_y
    gram = x.T @ x
    gram.diagonal().add_(ridge * float(gram.diagonal().mean()))
    solved = torch.linalg.solve(gram, x.T @ y).T
    part = DualModel(replace(config))
    _set_linear(part.image.head, solved, -(solved @ centre_x))
    # The caption's features have nearly one length; the head takes them as they are.
    _set_linear(part.text.head, torch.eye(size) / float(texts.norm(dim=1).mean()), -centre_y)
    return part.eval()


def _check_owners(image_of_caption: Tensor, images: int, captions: int) -> None:
    """Refuse numbers that are no image's, and images without a caption."""
    numbers, remedy = image_of_caption, "count images from 0, and leave out those without captions"
    if numbers.is_floating_point() or numbers.shape != (captions,):
        got = f"{numbers.dtype} {tuple(numbers.shape)}"
        fail("image_of_caption", f"a whole number for each of {captions} captions", got, remedy)
    outside = numbers[(numbers < 0) | (numbers >= images)]
    if len(outside):
        fail("image_of_caption", f"numbers from 0 to {images - 1}", int(outside[0]), remedy)
    missing = torch.bincount(numbers, minlength=images) == 0
    if missing.any():
        got = f"none for image {int(missing.nonzero()[0])}"
        fail("image_of_caption", "a caption or more for every image", got, remedy)


def _set_linear(head: Head, weight: Tensor, bias: Tensor) -> None:
    """Make a head the linear map that this weight and bias are, in its first entries; the others are zero."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.get_parameter("linear.weight")[: len(bias)] = weight.float()
        head.get_parameter("linear.bias")[: len(bias)] = bias.float()


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
