"""The package on a Python without the functions of POSIX: every import, indexing, search and training."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bcls._core.files import rename, write_whole
from tests.data.factories import image_bytes
from tests.training.factories import make_data

ROOT = Path(__file__).parents[1]
needs_proc = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="imitates Windows, on Linux only")


def run(code, *arguments):
    """Run code in the imitation of Windows with the console encoding of western Windows; return its output."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "portable"), os.environ.get("PYTHONPATH", "")]),
        "PYTHONIOENCODING": "cp1252",
        "PYTHONWARNDEFAULTENCODING": "1",
    }
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr.decode("cp1252")[-4000:]
    return done.stdout.decode("cp1252")


@needs_proc
def test_the_imitation():
    code = """
import os, pathlib, signal, sys
assert not hasattr(os, "fork") and not hasattr(os, "sync") and not hasattr(signal, "SIGALRM")
for name in ("fcntl", "resource"):
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{name} can be imported")
path = pathlib.Path(sys.argv[1])
with path.open("w", encoding="utf-8"):
    try:
        path.unlink()
    except PermissionError:
        print("kept")
path.unlink()
try:
    print("\\u5199")
except UnicodeEncodeError:
    print("not encoded")
"""
    assert run(code, ROOT / "tests" / "portable" / "made.tmp").split() == ["kept", "not", "encoded"]


CODE = """
import importlib, pathlib, pkgutil, sys
import bcls
from bcls import PhotoIndex
from bcls.cli.main import main

photos, index, data, out = sys.argv[1:]
# Triton has packages for Linux only.
names = [one.name for one in pkgutil.walk_packages(bcls.__path__, "bcls.") if "_triton" not in one.name]
for name in names:
    if name != "bcls.__main__":
        importlib.import_module(name)
print(len(names), "modules")

assert main(["index", photos, "--out", index]) == 0
opened = PhotoIndex(index)
assert len(opened.search("a photo", k=9)) == 4
pathlib.Path(photos, "one.png").unlink()
assert main(["index", photos, "--out", index]) == 0
assert main(["search", index, "a photo", "-k", "9"]) == 0
assert main(["search", index, "a photo", "-k", "9", "--json"]) == 0

words = ["train", "--data", data, "--out", out, "--features", "made", "--labels", "none", "--device", "cpu"]
words += ["--word-threshold", "1", "--batch", "8", "--model.name", "vsepp", "--model.width", "8"]
words += ["--model.word-width", "4", "--loss.name", "triplet-sn", "--workers", "1"]
assert main([*words, "--epochs", "2"]) == 0
assert main([*words, "--epochs", "3", "--resume"]) == 0
"""


@needs_proc
def test_imports_index_search_and_training(tmp_path):
    """In one process, since importing torch takes longer than the rest."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for seed, name in enumerate(["one", "写真", "café", "four"]):
        (photos / f"{name}.png").write_bytes(image_bytes(seed))
    out = run(CODE, photos, tmp_path / "index", make_data(tmp_path / "data"), tmp_path / "run")
    assert int(out.split()[0]) > 150
    text, listed = out.split("modules", 1)[1].split("[{", 1)  # the lines, then JSON
    for found in (text, listed):
        assert r"\u5199\u771f.png" in found
    assert "café.png" in text
    assert "one.png" not in text
    assert (tmp_path / "run" / "checkpoints" / "best").is_dir()
    assert (tmp_path / "run" / "report.html").exists()


def test_a_file_in_use_is_replaced_when_it_is_closed(tmp_path, monkeypatch):
    plain, refusals = os.replace, iter([PermissionError(13, "in use")] * 3)

    def replace(source, target):
        if error := next(refusals, None):
            raise error
        plain(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write_whole(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "new"


def test_a_file_that_stays_in_use_raises(tmp_path, monkeypatch):
    def replace(source, target):
        raise PermissionError(13, "in use")

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr("bcls._core.files.time.sleep", lambda seconds: None)
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError):
        rename(tmp_path / "file", tmp_path / "other")
