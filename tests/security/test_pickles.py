"""Files that would run code when unpickled: no reader runs it."""

import io
import os
import pickle
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest
import torch

from bcls.data.features import load_array
from bcls.evaluation.arrays import open_matrix
from bcls.models.published import import_checkpoint, read_tensors
from tests.models.test_published import checkpoint


class Hostile:
    """Creates a file when it is unpickled by code that calls arbitrary functions."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def calls(mark):
    """Return payloads that run code, by name."""
    return {
        "os.system": Hostile(os.system, f"touch {mark}"),
        "eval": Hostile(eval, f"__import__('os').mkdir({str(mark)!r})"),
        "subprocess": Hostile(subprocess.check_call, ["touch", str(mark)]),
        "nested": {"a": [1, ({"b": Hostile(os.mkdir, str(mark))},)]},
        "getattr": Hostile(getattr, Hostile(__import__, "os"), "mkdir"),
        "torch's own": Hostile(torch.load, str(mark)),
    }


@pytest.mark.parametrize("name", list(calls("x")))
@pytest.mark.parametrize("form", ["zip", "legacy", "protocol 5"])
def test_checkpoints(tmp_path, name, form):
    mark, path = tmp_path / "mark", tmp_path / "a.pth.tar"
    content = checkpoint()[1] | {"extra": calls(mark)[name]}
    if form == "protocol 5":
        path.write_bytes(pickle.dumps(calls(mark)[name], protocol=5))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(ValueError, match=r"expected (tensors and plain values|a complete checkpoint file)"):
        import_checkpoint(path)
    assert not mark.exists()


def test_oldest_tar_format(tmp_path):
    """Files of torch 0.1 are tars of pickles."""
    mark, path = tmp_path / "mark", tmp_path / "a.pth.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("storages", "tensors", "pickle", "sys_info"):
            content = pickle.dumps(Hostile(os.mkdir, str(mark)), protocol=2)
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with pytest.raises(ValueError, match="checkpoint"):
        import_checkpoint(path)
    assert not mark.exists()


def test_numpy_numbers_are_read_without_numpy(tmp_path):
    values = {"a": np.float64(99.5), "b": np.int64(-3), "c": np.float32(0.5), "d": np.bool_(True)}
    torch.save(values, tmp_path / "a.pth")
    assert read_tensors(tmp_path / "a.pth") == {"a": 99.5, "b": -3, "c": 0.5, "d": True}


@pytest.mark.parametrize("ending", [b"\nb\n.", b""], ids=["whole", "cut off"])
@pytest.mark.parametrize("letter", [b"a", b"\xc3\xa4"], ids=["ascii", "utf-8"])
def test_names_with_thousands_of_letters_are_fast(tmp_path, letter, ending):
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02c" + letter * 200_000 + ending)
        archive.writestr("archive/version", b"3\n")
    with pytest.raises(ValueError, match="a name of thousands of letters"):
        read_tensors(path)


@pytest.mark.parametrize("read", [load_array, lambda path: open_matrix(str(path))], ids=["features", "scores"])
def test_arrays_of_objects(tmp_path, read):
    mark = tmp_path / "mark"
    np.save(tmp_path / "a.npy", np.array([Hostile(os.mkdir, str(mark))], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="expected"):
        read(tmp_path / "a.npy")
    assert not mark.exists()
