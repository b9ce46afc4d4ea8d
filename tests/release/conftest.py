"""The package as a user gets it: built as a wheel and installed into an environment of its own."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
collect_ignore_glob = ["typed/*"]  # for the type checker alone


def environment():
    """The environment of a process that sees nothing of this repository."""
    return {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "MYPYPATH"}}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """A wheel of the tree as it is now."""
    pytest.importorskip("build", reason="needs pip install build")
    pytest.importorskip("hatchling", reason="needs pip install hatchling")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, env=environment(), cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def python(wheel, tmp_path_factory):
    """An interpreter with the wheel installed; what it stands on is borrowed from the environment of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    program = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(program), "install", "--quiet", "--no-deps", "--no-index"]
    if shutil.which("pip") is None and subprocess.run([*pip[:3], "--version"], capture_output=True).returncode:
        pytest.skip("needs pip")
    subprocess.run([*pip, str(wheel)], check=True, env=environment())
    site = subprocess.run(
        [str(program), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    ).stdout.strip()
    # Behind its own packages, so that the wheel comes first.
    (Path(site) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return program
