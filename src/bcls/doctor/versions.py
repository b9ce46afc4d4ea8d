"""Which versions are installed."""

import platform
import shutil
import subprocess
from importlib import metadata

import bcls
from bcls.doctor.report import Line, Section

#: The packages whose versions explain most bug reports, beside the extras' own.
_PACKAGES = ("numpy", "scipy", "pillow", "safetensors", "accelerate", "jsonargparse")


def version_of(package: str) -> str | None:
    """The installed version of a package, None where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> Section:
    """Python, this package, torch with what it was built for, and those it stands on."""
    import torch

    lines = [
        Line("bcls", bcls.__version__, _mismatch()),
        Line("python", f"{platform.python_version()} ({platform.python_implementation()})"),
        Line("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        Line("torch", torch.__version__),
        Line("CUDA of torch", torch.version.cuda or "none, built for CPUs"),
        Line("NVIDIA driver", _driver() or "none found"),
        Line("triton", version_of("triton") or "not installed"),
        *(_package(name) for name in _PACKAGES),
    ]
    return Section("versions", tuple(lines))


def _package(name: str) -> Line:
    version = version_of(name)
    if version is not None:
        return Line(name, version)
    return Line(name, "not installed", f"bcls needs it; pip install {name}")


def _mismatch() -> str:
    """A package whose description is another version's is a mix of two installs."""
    installed = version_of("bcls")
    if installed in {None, bcls.__version__}:
        return ""
    return f"the code is {bcls.__version__}, its description says {installed}; pip install --force-reinstall bcls"


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(run.stdout.split()), None)
