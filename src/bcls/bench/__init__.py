"""Time and memory of every path of the losses and of their rivals, against batch, windows and width: ``bcls bench``."""

from bcls.bench.measure import difference, medians, megabytes, milliseconds, step
from bcls.bench.report import page, write_result
from bcls.bench.subjects import SUBJECTS, run_subject

__all__ = [
    "SUBJECTS",
    "difference",
    "medians",
    "megabytes",
    "milliseconds",
    "page",
    "run_subject",
    "step",
    "write_result",
]
