"""What the labels accept: embeddings of numpy or torch and integers that name images."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcls._checks import fail

if TYPE_CHECKING:
    import torch


def check_embeddings(argument: str, value: Any) -> None:
    """Check that ``value`` is an array or tensor ``(n, d)`` of real numbers; n may be 0.

    Args:
        argument: Name of the argument, for the message.
        value: What came.

    Raises:
        ValueError: If it is anything else.

    Example:
        >>> check_embeddings("captions", np.zeros(4))
        Traceback (most recent call last):
        ...
        ValueError: `captions`: expected a matrix (texts, dimensions), got shape (4,); give one embedding a text
    """
    import torch

    expected = "a matrix (texts, dimensions)"
    if not isinstance(value, np.ndarray | torch.Tensor):
        fail(argument, expected, type(value).__name__, "give a numpy array or a torch tensor")
    if len(value.shape) != 2 or not value.shape[1]:
        fail(argument, expected, f"shape {tuple(value.shape)}", "give one embedding a text")
    real = not value.is_complex() if isinstance(value, torch.Tensor) else value.dtype.kind in "fiu"
    if not real:
        fail(argument, "real numbers", f"dtype {value.dtype}", "give float16, float32 or float64")


def unit_rows(argument: str, value: Any, offset: int = 0) -> "torch.Tensor":
    """Copy embeddings to float32 rows of unit length.

    Args:
        argument: Name of the argument, for the message.
        value: ``(n, d)`` checked array or tensor.
        offset: What to add to a row's number in a message, for a block of a larger matrix.

    Returns:
        ``(n, d)`` float32 tensor without gradient, on the device of ``value``.

    Raises:
        ValueError: If a row is zero or not finite.
    """
    import torch

    if isinstance(value, np.ndarray):
        # A copy also where nothing is converted: torch warns about arrays it may not write to, such as mapped files.
        rows = torch.from_numpy(value.astype(np.float32))
    else:
        rows = value.detach().to(torch.float32)
    largest = rows.abs().amax(dim=1, keepdim=True)
    _refuse(argument, ~largest.isfinite(), offset, "finite numbers", "NaN or infinity", "encode it again")
    remedy = "an empty caption, most likely: drop it"
    _refuse(argument, largest == 0, offset, "vectors with a direction", "a zero vector", remedy)
    # Divided by the largest first, so that the squares of very large or small numbers stay in range.
    return torch.nn.functional.normalize(rows / largest, dim=1)


def _refuse(argument: str, bad: "torch.Tensor", offset: int, expected: str, got: str, remedy: str) -> None:
    if bool(bad.any()):
        fail(argument, expected, f"{got} in row {offset + int(bad.flatten().int().argmax())}", remedy)


def check_images(argument: str, value: Any, length: int, images: int | None = None) -> NDArray[np.int64]:
    """Check integers that name the image of each row.

    Args:
        argument: Name of the argument, for the message.
        value: ``(length,)`` integers from 0; array, tensor or sequence.
        length: How many there must be.
        images: How many images there are, where that is known.

    Returns:
        int64 array.

    Raises:
        ValueError: If they are not that many integers, or one of them names no image.

    Example:
        >>> check_images("caption_image", [0, 2], 2, images=2)
        Traceback (most recent call last):
        ...
        ValueError: `caption_image`: expected integers 0 to 1, got 2 at index 1; give `reference` a row for that image
    """
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.shape != (length,) or array.dtype.kind not in "iu":
        got = f"shape {array.shape} of {array.dtype}"
        fail(argument, f"{length} integers, the image of each row", got, "give one for each embedding")
    wrong = np.flatnonzero((array < 0) | (array >= images if images is not None else False))
    if wrong.size:
        expected = "integers from 0" if images is None else f"integers 0 to {images - 1}"
        got = f"{array[wrong[0]]} at index {wrong[0]}"
        fail(argument, expected, got, "give `reference` a row for that image")
    return array.astype(np.int64)
