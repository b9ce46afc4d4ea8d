"""Experiments: sweeps of many runs from one file, and reports with tables, curves and claims about their results.

:func:`run_sweep` implements ``bcls sweep``, :func:`read_results` reads the results. The names are imported lazily, so
that settings can be read without importing torch.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Outcome": "sweep",
    "PlannedRun": "plan",
    "Sweep": "sweep_file",
    "SweepSettings": "sweep_file",
    "plan_runs": "plan",
    "read_results": "results",
    "read_sweep": "sweep_file",
    "run_sweep": "sweep",
}

__all__ = ["Outcome", "PlannedRun", "Sweep", "SweepSettings", "plan_runs", "read_results", "read_sweep", "run_sweep"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bcls.experiments.{_HOMES[name]}"), name)
