"""Search in an index of photos: by text, by picture, for captions, for more of the same."""

from bcls.search.answer import Answer, CaptionAnswer, CaptionHit, Hit
from bcls.search.batcher import OverloadedError
from bcls.search.service import Service
from bcls.search.settings import ServiceSettings

__all__ = [
    "Answer",
    "CaptionAnswer",
    "CaptionHit",
    "Hit",
    "OverloadedError",
    "Service",
    "ServiceSettings",
]
