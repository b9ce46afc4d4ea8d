"""Datasets of images and captions: on disk, imported from other layouts, and as words for recurrent models."""

from bcls.data.dataset import Dataset, open_dataset
from bcls.data.features import Features
from bcls.data.manifest import Manifest
from bcls.data.records import Caption, ImageRecord
from bcls.data.tokens import tokenize
from bcls.data.vocabulary import Vocabulary
from bcls.data.write import Content, write_dataset

__all__ = [
    "Caption",
    "Content",
    "Dataset",
    "Features",
    "ImageRecord",
    "Manifest",
    "Vocabulary",
    "open_dataset",
    "tokenize",
    "write_dataset",
]
