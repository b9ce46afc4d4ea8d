"""What there is to compute on: processors, memory, accelerators."""

import os
from pathlib import Path

from bcls.doctor.report import Line, Section

GIB = 1 << 30


def devices() -> Section:
    """Cores and threads, memory, and every CUDA device with how much of its memory is free."""
    import torch

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = os.environ.get("OMP_NUM_THREADS")
    lines = [
        Line("processors", f"{os.cpu_count()}, of which this process may use {allowed}"),
        Line("threads of torch", f"{torch.get_num_threads()}{f' (OMP_NUM_THREADS={limit})' if limit else ''}"),
        Line("memory", _memory()),
    ]
    lines += [_gpu(number) for number in range(torch.cuda.device_count())] or [Line("CUDA devices", "none")]
    if torch.backends.mps.is_available():
        lines.append(Line("Apple GPU", "available"))
    return Section("devices", tuple(lines))


def _gpu(number: int) -> Line:
    import torch

    facts = torch.cuda.get_device_properties(number)
    name = f"cuda:{number}"
    about = f"{facts.name}, compute capability {facts.major}.{facts.minor}"
    try:
        free, total = torch.cuda.mem_get_info(number)
    except RuntimeError as error:
        return Line(name, about, f"its memory cannot be read ({error}); look at `nvidia-smi`")
    return Line(name, f"{about}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")


def _memory() -> str:
    """Memory of the machine, or of the container where that is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return "unknown"
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        limit = "max"
    if limit.isdigit() and int(limit) < total:
        return f"{int(limit) / GIB:.1f} GiB (limit of the container)"
    return f"{total / GIB:.1f} GiB"
