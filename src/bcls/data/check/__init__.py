"""Reads a dataset completely, once, and lists what is wrong with it."""

from bcls.data.check.run import Report, check_dataset
from bcls.data.check.settings import CheckSettings

__all__ = ["CheckSettings", "Report", "check_dataset"]
