"""Parts of the photo models beside their trained heads: a regression to the label space, and the image classes."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from bcls._core.errors import fail
from bcls.models.dual import DualModel
from bcls.models.layers import Head, unit
from bcls.models.open_vocabulary import CENTROIDS, CLASSES, WIDTH


def label_space_part(
    like: DualModel, images: Tensor, texts: Tensor, image_of_caption: Tensor, ridge: float = 1.0
) -> DualModel:
    r"""Ridge regression from image features to the mean caption vector of the image.

    .. math::
        v(I) = W (x_I - \bar x), \quad t(T) = y_T - \bar y, \quad W = \arg\min_W \sum_I \lVert W (x_I - \bar x)
            - (\bar y_I - \bar y) \rVert^2 + \lambda \lVert W \rVert^2

    where :math:`y` are the unit vectors of the frozen caption encoder and :math:`\bar y_I` is their mean over the
    captions of image I. If that encoder also computes the labels, the score of a caption is its expected label up to a
    constant. Combine the result with trained heads by
    :func:`bcls.models.combine.merge`.

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
        captions: ``(256, 384)`` centroids of the training captions, see :func:`centroids`.
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


def centroids(vectors: Tensor, seed: int = 0, rounds: int = 12) -> Tensor:
    """Spherical k-means: ``(256, d)`` unit centroids of unit vectors ``(C, d)``, C at least 256.

    Example:
        >>> centroids(unit(torch.randn(300, 8))).shape
        torch.Size([256, 8])
    """
    generator = torch.Generator().manual_seed(seed)
    found = vectors[torch.randperm(len(vectors), generator=generator)[:CENTROIDS]]
    for _ in range(rounds):
        nearest = (vectors @ found.T).argmax(1)
        found = unit(torch.zeros_like(found).index_add_(0, nearest, vectors))
    return found
