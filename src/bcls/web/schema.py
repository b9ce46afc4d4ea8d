"""What the API takes and gives, for its description and its checks."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field

from bcls.search.engine import Where, where
from bcls.search.service import MAX_RESULTS, MAX_TEXT
from bcls.web.problem import ProblemError


class FoundPhoto(BaseModel):
    """A photo that was found."""

    path: str = Field(description="Where its file is; for an archive the archive's path and the name inside.")
    score: float = Field(description="Between 0 and 1; below 0.5 it does not fit.")
    similarity: float | None = Field(description="What the model says, on its own scale.")
    fits: bool
    number: int = Field(description="Its number in the index.")
    name: str = Field(description="Its name below the folder of photos.")
    date: str
    date_from: Literal["camera", "file"]
    captions: list[str]
    place: list[float] | None = Field(None, description="Latitude and longitude, if the camera gave them.")


class FoundPhotos(BaseModel):
    """Photos, best first."""

    results: list[FoundPhoto]
    fits: bool = Field(description="Whether anything fits.")
    reranked: int = Field(description="How many results of the vectors the whole model ranked again.")


class FoundCaption(BaseModel):
    """A caption that was found, with the photo that it belongs to."""

    text: str
    score: float
    similarity: float
    fits: bool
    path: str
    name: str
    number: int = Field(description="Number of the photo that it belongs to.")


class FoundCaptions(BaseModel):
    """Captions, best first."""

    results: list[FoundCaption]
    fits: bool
    reranked: int


class PhotoFacts(BaseModel):
    """What is known about a photo."""

    number: int
    name: str
    path: str
    date: str
    date_from: Literal["camera", "file"]
    captions: list[str]
    place: list[float] | None = None


class Health(BaseModel):
    """That the server lives."""

    status: Literal["ok"] = "ok"


class Problem(BaseModel):
    """What went wrong."""

    type: str
    title: str
    status: int
    detail: str = Field(description="What is wrong and what to do.")


#: Longest text of a filter.
_LONGEST = 200

Text = Annotated[
    str,
    Query(
        description="What the photos should show.",
        json_schema_extra={"minLength": 1, "maxLength": MAX_TEXT},
        examples=["a dog on the beach"],
    ),
]
Results = Annotated[int, Query(ge=1, le=MAX_RESULTS, description="How many results.")]
Number = Annotated[int, Path(ge=1, le=2**63 - 1, description="Number of a photo, as a search gives it.")]


async def limits(
    after: Annotated[str, Query(max_length=_LONGEST, description="First date, such as 2024-05.")] = "",
    before: Annotated[str, Query(max_length=_LONGEST, description="First date that is too late.")] = "",
    under: Annotated[str, Query(max_length=_LONGEST, description="Beginning of the name.")] = "",
    words: Annotated[str, Query(max_length=_LONGEST, description="Words that captions must have.")] = "",
) -> Where:
    """The filters of a request."""
    try:
        return where(after, before, under, words)
    except ValueError as error:
        raise ProblemError(422, str(error)) from error


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Descriptions of the answers that are problems; 401, 403, 421 and 503 may come from every address."""
    return {status: {"model": Problem} for status in sorted({*statuses, 401, 403, 421, 503})}
