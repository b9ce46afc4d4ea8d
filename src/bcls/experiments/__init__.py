"""Experiments: many runs from one file, and tables, curves and verdicts from what they left.

:func:`run_sweep` is the whole of ``bcls sweep``, :func:`read_results` reads what it wrote. The names are imported when
they are asked for, so that settings can be read without torch.
"""

from importlib import import_module
from typing import Any

from bcls.models import register_model

# By path, so that reading settings does not import torch.
register_model("scenes", "bcls.experiments.demo_model:ScenesConfig", "bcls.experiments.demo_model:ScenesModel")

_HOMES = {
    "Outcome": "sweep",
    "Sweep": "sweep_file",
    "SweepSettings": "sweep_file",
    "read_results": "results",
    "read_sweep": "sweep_file",
    "run_sweep": "sweep",
}

__all__ = ["Outcome", "Sweep", "SweepSettings", "read_results", "read_sweep", "run_sweep"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bcls.experiments.{_HOMES[name]}"), name)
