"""Experiments: sweeps of many runs from one file, and reports with tables, curves and claims about their results.

:func:`run_sweep` implements ``bcls sweep``, :func:`read_results` reads the results. The names are imported lazily, so
that settings can be read without importing torch.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "plan": "PlannedRun plan_runs",
    "results": "read_results",
    "sweep": "Outcome run_sweep",
    "sweep_file": "Sweep SweepSettings read_sweep",
}
_LOCATIONS = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = list(_LOCATIONS)


def __getattr__(name: str) -> Any:
    if name not in _LOCATIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"bcls.experiments.{_LOCATIONS[name]}"), name)
