"""Whether there is room to write, and permission."""

import shutil
import tempfile
from pathlib import Path

from bcls.doctor.devices import GIB
from bcls.doctor.report import Line, Section

#: Bytes below which a run or an index is likely to fill the disk.
LEAST_FREE = GIB


def room() -> Section:
    """The current and the temporary folder; their names are nobody's business."""
    places = {"current folder": Path.cwd(), "temporary folder": Path(tempfile.gettempdir())}
    return Section("disk", tuple(look(name, folder) for name, folder in places.items()))


def look(name: str, folder: Path) -> Line:
    """Free space of a folder, and whether a file can be written there."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Line(name, "cannot be read", f"{error.strerror}; change to a folder that is there")
    value = f"{free / GIB:.1f} GiB free"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        remedy = "set TMPDIR to a folder of yours" if name.startswith("temporary") else "write elsewhere with --out"
        return Line(name, f"{value}, not writable", f"no file can be written there ({error.strerror}); {remedy}")
    if free < LEAST_FREE:
        return Line(name, value, f"less than {LEAST_FREE / GIB:g} GiB free; make room before a run")
    return Line(name, f"{value}, writable")
