"""Datasets of images and captions: dataset folders, importers, human judgements, vocabularies."""

from bcls.data.dataset import Dataset, open_dataset
from bcls.data.features import Features
from bcls.data.judgements import CxCPairs, HumanRatings, flickr8k_crowdflower, flickr8k_expert, read_cxc
from bcls.data.records import Caption, Content, ImageRecord, Manifest, write_dataset
from bcls.data.vocabulary import Vocabulary, tokenize

__all__ = ["Caption", "Content", "Dataset", "Features", "ImageRecord", "Manifest", "open_dataset", "write_dataset"]
__all__ += ["CxCPairs", "HumanRatings", "Vocabulary", "flickr8k_crowdflower", "flickr8k_expert", "read_cxc", "tokenize"]
