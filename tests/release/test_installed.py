"""The installed wheel: what is in it, how it starts, and that it needs nothing of the repository."""

import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from bcls import __version__
from tests.release.conftest import environment

pytestmark = pytest.mark.slow

TYPED = Path(__file__).parent / "typed"


def run(python, *words, cwd):
    return subprocess.run([str(python), *words], capture_output=True, text=True, env=environment(), cwd=cwd)


def test_what_is_in_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"bcls", f"bcls-{__version__}.dist-info"}
    source = Path(__file__).parents[2] / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "bcls").rglob("*") if path.is_file()}
    expected = {name for name in files if "__pycache__" not in name}
    assert {"bcls/py.typed", "bcls/web/static/app.js", "bcls/models/photo/README.md"} <= expected
    assert {name for name in names if name.startswith("bcls/")} == expected
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_it_is_the_installed_one(python, tmp_path):
    where = run(python, "-c", "import bcls; print(bcls.__file__)", cwd=tmp_path).stdout.strip()
    assert Path(where).is_relative_to(Path(python).parents[1])


def test_the_command_and_the_module(python, tmp_path):
    program = Path(python).with_name("bcls")
    for words in ([str(program)], [str(python), "-m", "bcls"]):
        shown = subprocess.run([*words, "--version"], capture_output=True, text=True, env=environment(), cwd=tmp_path)
        assert shown.stdout == f"bcls {__version__}\n"


def test_import_is_fast_and_leaves_torch_alone(python, tmp_path):
    code = (
        "import sys, time; start = time.perf_counter(); import bcls; took = time.perf_counter() - start; "
        "import json; print(json.dumps([took, 'torch' in sys.modules, 'numpy' in sys.modules]))"
    )
    tries = [json.loads(run(python, "-c", code, cwd=tmp_path).stdout) for _ in range(3)]
    assert min(took for took, _, _ in tries) < 0.3
    assert not any(torch or numpy for _, torch, numpy in tries)


def test_a_loss_works(python, tmp_path):
    code = "import torch; from bcls.losses import BCLSLoss; print(BCLSLoss()(torch.eye(3), torch.eye(3)).item())"
    shown = run(python, "-c", code, cwd=tmp_path)
    assert float(shown.stdout) == 0


def check_types(python, file, tmp_path):
    pytest.importorskip("mypy", reason="needs pip install mypy")
    cache = Path(python).parents[1] / "mypy-cache"  # torch takes most of the time, and only once
    command = ["-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache)]
    return run(python, *command, str(file), cwd=tmp_path)


def test_right_calls_pass_the_type_checker(python, tmp_path):
    checked = check_types(python, TYPED / "right.py", tmp_path)
    assert checked.stdout + checked.stderr == ""
    assert checked.returncode == 0


def test_the_checked_calls_also_run(python, tmp_path):
    assert run(python, str(TYPED / "right.py"), cwd=tmp_path).stderr == ""


def test_wrong_calls_do_not_pass(python, tmp_path):
    lines = (TYPED / "wrong.py").read_text(encoding="utf-8").splitlines()
    expected = {(at, found[1]) for at, line in enumerate(lines, 1) if (found := re.search(r"# error: ([\w-]+)$", line))}
    checked = check_types(python, TYPED / "wrong.py", tmp_path)
    assert len(expected) >= 8
    assert {
        (int(at), kind) for at, kind in re.findall(r":(\d+): error: .*\[([\w-]+)\]$", checked.stdout, re.M)
    } == expected
