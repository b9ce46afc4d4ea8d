"""Datasets of images and captions."""
