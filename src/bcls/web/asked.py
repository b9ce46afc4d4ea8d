"""Calls of the service with what requests bring, and problems for what is wrong with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bcls.data.images import decode
from bcls.search.batcher import OverloadedError
from bcls.search.catalog import Photo
from bcls.search.engine import IndexUnavailableError
from bcls.search.service import Service, unreadable
from bcls.web.problem import ProblemError

if TYPE_CHECKING:
    from PIL import Image


@contextmanager
def asked(argument: str = "q") -> Iterator[None]:
    """Turn the errors of a search into problems.

    Args:
        argument: What the request calls the text.

    Raises:
        ProblemError: 422 for what the request got wrong, 503 for too much load or an index that is gone.
    """
    try:
        yield
    except OverloadedError as error:
        raise ProblemError(503, str(error), error.retry_after) from error
    except IndexUnavailableError as error:
        raise ProblemError(503, str(error), 60) from error
    except ValueError as error:
        raise ProblemError(422, str(error).replace("`text`", f"`{argument}`", 1)) from error
    except OSError as error:
        raise ProblemError(503, unreadable(error), 60) from error


def photo_of(service: Service, number: int) -> Photo:
    """A photo of the index.

    Raises:
        ProblemError: 404, there is none of that number; 503, the index cannot be read.
    """
    try:
        return service.photo(number)
    except IndexUnavailableError as error:
        raise ProblemError(503, str(error), 60) from error
    except ValueError as error:
        raise ProblemError(404, str(error)) from error
    except OSError as error:
        raise ProblemError(503, unreadable(error), 60) from error


@contextmanager
def shown(name: str) -> Iterator[None]:
    """Turn the errors of reading a photo's file into problems.

    Raises:
        ProblemError: 404, its file is gone or cannot be read any more; 503, the index cannot.
    """
    try:
        yield
    except IndexUnavailableError as error:
        raise ProblemError(503, str(error), 60) from error
    except (OSError, ValueError) as error:
        detail = f"{name}: the photo is in the index, but its file is missing or cannot be read ({_short(error)})"
        raise ProblemError(404, f"{detail}: put it back, or run `bcls index` again") from error


def picture(content: bytes, max_pixels: int) -> "Image.Image":
    """A picture out of the bytes of a request.

    Args:
        content: The bytes.
        max_pixels: More pixels are refused before they are unpacked.

    Raises:
        ProblemError: 415 for what is no picture or a damaged one, 413 for one that is too large.
    """
    try:
        return decode(content, "image", max_pixels=max_pixels)
    except ValueError as error:
        detail = str(error).replace("copy it again or leave it out", "send a JPEG, PNG, WebP, GIF, BMP or TIFF file")
        detail = detail.replace(", or raise the limit if you trust it", "")
        raise ProblemError(413 if f"at most {max_pixels} pixels" in detail else 415, detail) from error


def _short(error: Exception) -> str:
    return (error.strerror or "not there") if isinstance(error, OSError) else str(error)
