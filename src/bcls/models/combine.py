"""Dual encoders made from others: several trained ones merged into one, and a part that is solved by regression."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from bcls._core.errors import fail
from bcls.models.config import DualConfig
from bcls.models.dual import DualModel
from bcls.models.layers import Head, unit
from bcls.models.open_vocabulary import CENTROIDS, CLASSES, WIDTH


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


def label_space_part(
    like: DualModel, images: Tensor, texts: Tensor, image_of_caption: Tensor, ridge: float = 1.0
) -> DualModel:
    r"""Ridge regression from image features to the mean caption vector of the image.

    .. math::
        v(I) = W (x_I - \bar x), \quad t(T) = y_T - \bar y, \quad W = \arg\min_W \sum_I \lVert W (x_I - \bar x)
            - (\bar y_I - \bar y) \rVert^2 + \lambda \lVert W \rVert^2

    where :math:`y` are the unit vectors of the frozen caption encoder and :math:`\bar y_I` is their mean over the
    captions of image I. If that encoder also computes the labels, the score of a caption is its expected label up to a
    constant. Combine the result with trained heads by :func:`merge`.

    Args:
        like: A model with the same frozen encoders; the result has its configuration.
        images: ``(N, d)`` features of the training images.
        texts: ``(C, e)`` features of their captions, e at most the width; with ``text_layers`` those of all layers,
            of which the last one is used.
        image_of_caption: ``(C,)`` index of each caption's image; every image has a caption.
        ridge: :math:`\lambda`, relative to the mean variance of a feature, summed over the images.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: The width is below that of the captions' features, heads are missing, or an image has no caption.
    """
    config = like.config
    first = texts.shape[1] - texts.shape[1] // max(1, len(config.text_layers))  # of the last layer
    texts = texts[:, first:]
    size, layers = texts.shape[1], (like.image.head.linear, like.text.head.linear)
    if config.width < size or None in layers or config.heads > 1:
        expected = f"one head on each side with a width of at least {size}"
        fail("like", expected, f"{config.heads} of width {config.width}", "train such heads")
    _check_image_of_caption(image_of_caption, len(images), len(texts))
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
    # The features of captions have nearly equal norms; the head does not normalize them.
    _set_linear(part.text.head, torch.eye(size) / float(texts.norm(dim=1).mean()), -centre_y, first)
    return part.eval()


def add_open_vocabulary(
    model: DualModel,
    names: Tensor,
    captions: Tensor,
    *,
    middle: float,
    width: float,
    sharpness: float = 1.0,
    length: float = 1.0,
) -> DualModel:
    """Add the classes of the image encoder to a dual encoder with frozen EfficientNet-Lite and MiniLM.

    See :mod:`bcls.models.open_vocabulary`.

    Args:
        model: The model, with trained heads.
        names: ``(1000, 384)`` vectors of the classes by MiniLM, of names or definitions.
        captions: ``(256, 384)`` centroids of the training captions, see :func:`bcls.models.open_vocabulary.centroids`.
        middle: Cosine with the nearest centroid at which a text reads both parts equally, c_0.
        width: Width of the transition, w.
        sharpness: Factor of the logits of the classes.
        length: Length of the class part of an image, from 0 to 1.

    Returns:
        A model with the same heads, in eval mode.

    Raises:
        ValueError: The model has other encoders, or arrays have other shapes.
    """
    for name, given, count in (("names", names, CLASSES), ("captions", captions, CENTROIDS)):
        if given.shape != (count, WIDTH):
            fail(name, f"shape {(count, WIDTH)}", tuple(given.shape), "compute them with MiniLM")
    if not 0 < length <= 1:
        fail("length", "a number above 0 and at most 1", length, "scale the class part to at most 1")
    result = DualModel(replace(model.config, open_vocabulary=True))
    vectors = unit(names)
    added = {
        "image.open_vocabulary.names": vectors,
        "image.open_vocabulary.sharpness": torch.tensor(sharpness),
        "image.open_vocabulary.length": torch.tensor(length),
        "text.open_vocabulary.mean": vectors.mean(0),
        "text.open_vocabulary.centroids": unit(captions),
        "text.open_vocabulary.gate": torch.tensor([middle, width]),
    }
    result.load_trained_state(result.trained_state() | model.trained_state() | added)
    return result.eval()


def _check_image_of_caption(indices: Tensor, images: int, captions: int) -> None:
    """Check for valid image indices, and a caption for each image."""
    argument, hint = "image_of_caption", "count images from 0, and leave out those without captions"
    if indices.is_floating_point() or indices.shape != (captions,):
        fail(argument, f"an integer for each of {captions} captions", f"{indices.dtype} {tuple(indices.shape)}", hint)
    outside = indices[(indices < 0) | (indices >= images)]
    if len(outside):
        fail(argument, f"integers from 0 to {images - 1}", int(outside[0]), hint)
    missing = torch.bincount(indices, minlength=images) == 0
    if missing.any():
        fail(argument, "a caption or more for every image", f"none for image {int(missing.nonzero()[0])}", hint)


def _set_linear(head: Head, weight: Tensor, bias: Tensor, first: int = 0) -> None:
    """Make a head the linear map of the inputs from ``first`` on in its first outputs; the others are zero."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.get_parameter("linear.weight")[: len(bias), first:] = weight.float()
        head.get_parameter("linear.bias")[: len(bias)] = bias.float()
