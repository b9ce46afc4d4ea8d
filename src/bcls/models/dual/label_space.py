"""A part of a dual encoder that is solved for, not trained: the image in the space of the caption encoder."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from bcls._checks import fail
from bcls.models.dual.heads import Head
from bcls.models.dual.model import DualModel


def label_space_part(
    like: DualModel, images: Tensor, texts: Tensor, image_of_caption: Tensor, ridge: float = 1.0
) -> DualModel:
    r"""Regress the mean vector of an image's captions on its features.

    .. math::
        v(I) = W (x_I - \bar x), \quad t(T) = y_T - \bar y, \quad W = \arg\min_W \sum_I \lVert W (x_I - \bar x)
            - (\bar y_I - \bar y) \rVert^2 + \lambda \lVert W \rVert^2

    where :math:`y` are the unit vectors of the frozen caption encoder and :math:`\bar y_I` is their mean over the
    captions of image I. Where that encoder also makes the labels, this is their geometry, distilled: the score of a
    caption is its expected label up to a constant. Merged with trained heads by :func:`bcls.models.dual.merge.merge`.

    Args:
        like: A model with the same frozen encoders; the result has its settings.
        images: ``(N, d)`` features of the training images.
        texts: ``(C, e)`` features of their captions, e at most the width.
        image_of_caption: ``(C,)`` number of each caption's image; every image has one.
        ridge: :math:`\lambda`, as a share of the mean variance of a feature, summed over the images.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: The width is below that of the captions' features, or heads are missing.
    """
    config = like.config
    if config.width < texts.shape[1] or "none" in (config.image_head, config.text_head) or config.heads > 1:
        expected = f"one head on each side with a width of at least {texts.shape[1]}"
        fail("like", expected, f"{config.heads} of width {config.width}", "train such heads")
    vectors = functional.normalize(texts.double(), dim=1)
    counts = torch.bincount(image_of_caption, minlength=len(images)).double()
    means = torch.zeros(len(images), texts.shape[1], dtype=torch.float64)
    means.index_add_(0, image_of_caption, vectors)
    means /= counts[:, None]
    centre_x, centre_y = images.double().mean(0), means.mean(0)
    x, y = images.double() - centre_x, means - centre_y
    gram = x.T @ x
    gram.diagonal().add_(ridge * float(gram.diagonal().mean()))
    solved = torch.linalg.solve(gram, x.T @ y).T
    part = DualModel(replace(config))
    with torch.no_grad():
        for parameter in (*part.image.head.parameters(), *part.text.head.parameters()):
            parameter.zero_()
        size = texts.shape[1]
        image, text = _linear(part.image.head), _linear(part.text.head)
        image.weight[:size] = solved.float()
        image.bias[:size] = -(solved @ centre_x).float()
        # The caption's features have nearly one length; the head takes them as they are.
        text.weight[:size] = torch.eye(size) / float(texts.norm(dim=1).mean())
        text.bias[:size] = -centre_y.float()
    return part.eval()


def _linear(head: Head) -> nn.Linear:
    assert head.linear is not None  # noqa: S101 - heads of the kind "none" were refused
    return head.linear
