"""Looks at everything, one section after another; what fails is a line of the report and ends nothing."""

import time
from collections.abc import Callable
from functools import partial

from bcls._extras import MissingExtraError
from bcls.doctor.report import Line, Report, Section


def examine() -> Report:
    """Look at versions, devices, extras, weights and disks, and try the main parts out.

    Returns:
        What was found. Missing optional parts are no problems.
    """
    from bcls.doctor.devices import devices
    from bcls.doctor.extras import extras
    from bcls.doctor.room import room
    from bcls.doctor.versions import versions
    from bcls.doctor.weights import weights

    looks: dict[str, Callable[[], Section]] = {
        "versions": versions,
        "devices": devices,
        "extras": extras,
        "disk": room,
        "self-test": self_test,
        "weights": weights,
    }
    return Report(tuple(_section(title, look) for title, look in looks.items()))


def self_test() -> Section:
    """Loss and training on every kind of device that is there, an index, and the kernels where there is a GPU."""
    import torch

    from bcls.doctor.try_losses import try_kernels, try_loss, try_training
    from bcls.doctor.try_search import try_search

    lines = []
    for device in ("cpu", *(("cuda",) if torch.cuda.is_available() else ())):
        lines.append(attempt(f"loss on {device}", partial(try_loss, device)))
        lines.append(attempt(f"training on {device}", partial(try_training, device)))
    lines.append(attempt("index and search", try_search))
    if torch.cuda.is_available():
        lines.append(attempt("kernels", try_kernels))
    return Section("self-test", tuple(lines))


def attempt(name: str, job: Callable[[], str]) -> Line:
    """Run one test; whatever it raises becomes the line's problem."""
    started = time.monotonic()
    try:
        found = job()
    except MissingExtraError as error:
        return Line(name, f"not tried: {error}")
    except Exception as error:  # a broken install can break anywhere, and the report must still come
        return Line(name, "failed", f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Line(name, f"{found} ({time.monotonic() - started:.1f} s)")


def _section(title: str, look: Callable[[], Section]) -> Section:
    try:
        return look()
    except Exception as error:  # as above
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Section(title, (Line("all", "could not be looked at", problem),))
