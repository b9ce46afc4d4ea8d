"""Relevance labels: how relevant every caption is to every image, computed from the captions.

>>> from bcls.labels import load_text_encoder, relevance
>>> encoder = load_text_encoder("minilm")
>>> captions = ["a dog runs", "a brown dog runs outside", "two people eat lunch"]
>>> vectors = encoder.encode(captions)
>>> relevance(vectors, vectors, [0, 0, 1], caption_image=[0, 0, 1]).round(1) + 0.0
array([[1., 1., 0.],
       [0., 0., 1.]], dtype=float32)
"""

from bcls.labels.alpha import CaptionSpread, suggest_alpha
from bcls.labels.cache import cached_embeddings
from bcls.labels.encoders import TextEncoder, load_text_encoder
from bcls.labels.relevance import relevance  # replaces the attribute of the submodule with the same name

__all__ = ["CaptionSpread", "TextEncoder", "cached_embeddings", "load_text_encoder", "relevance", "suggest_alpha"]
