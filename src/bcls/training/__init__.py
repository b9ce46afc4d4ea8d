"""Training: one loop over batches of distinct images, for every model and every loss.

:func:`train` is the whole of ``bcls train``. The loop itself is :mod:`bcls.training.loop`, a file to read.
"""

from bcls.training.config import TrainConfig
from bcls.training.run_folder import Result
from bcls.training.start import train

__all__ = ["Result", "TrainConfig", "train"]
