"""Training of image-text models: one loop over batches of distinct images, for every model and every loss.

:func:`bcls.training.train.train` does what ``bcls train`` does; :mod:`bcls.training.train` is the loop, read from top
to bottom. This package imports no torch, so that settings can be read without it.
"""

from bcls.training.config import Result, TrainConfig

__all__ = ["Result", "TrainConfig"]
