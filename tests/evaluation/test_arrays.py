"""Array files: reading, choice of a key, and errors."""

import gzip
import io
import sys
import zipfile

import numpy as np
import pytest
from safetensors.torch import save_file

from bcls._core.extras import MissingExtraError
from bcls.evaluation.arrays import open_matrix
from tests.evaluation.factories import make_scores
from tests.memory import below

SCORES = make_scores()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_npy_is_mapped(folder):
    np.save("a.npy", SCORES)
    stored = open_matrix("a.npy")
    assert isinstance(stored.array, np.memmap)
    assert np.array_equal(stored.array, SCORES)
    assert stored.ids == {}


def test_npy_gz(folder):
    with gzip.open("a.npy.gz", "wb") as file:
        np.save(file, SCORES)
    assert np.array_equal(open_matrix("a.npy.gz").array, SCORES)


def test_npz_with_one_array_and_with_several(folder):
    np.savez_compressed("one.npz", x=SCORES, image_ids=np.arange(6), caption_ids=np.array(["a", "ü"]))
    stored = open_matrix("one.npz")
    assert np.array_equal(stored.array, SCORES)
    assert stored.ids == {"image_ids": ["0", "1", "2", "3", "4", "5"], "caption_ids": ["a", "ü"]}
    np.savez("two.npz", x=SCORES, y=2 * SCORES)
    assert np.array_equal(open_matrix("two.npz:y").array, 2 * SCORES)
    with pytest.raises(ValueError, match=r"expected one array, got 2: 'x', 'y'; choose one, as in two.npz:x"):
        open_matrix("two.npz")
    with pytest.raises(ValueError, match=r"`two.npz:z`: expected one of the arrays 'x', 'y', got 'z'"):
        open_matrix("two.npz:z")
    np.savez("none.npz", image_ids=np.arange(6))
    with pytest.raises(ValueError, match="expected one array, got 0: none"):
        open_matrix("none.npz")


def test_safetensors(folder):
    import torch

    scores = torch.from_numpy(SCORES)
    save_file({"x": scores, "half": scores.bfloat16(), "image_ids": torch.arange(6)}, "a.safetensors")
    assert np.array_equal(open_matrix("a.safetensors:x").array, SCORES)
    assert np.array_equal(open_matrix("a.safetensors:half").array, scores.bfloat16().float().numpy())
    assert open_matrix("a.safetensors:x").ids["image_ids"] == ["0", "1", "2", "3", "4", "5"]
    with pytest.raises(ValueError, match="expected one array, got 2"):
        open_matrix("a.safetensors")
    save_file({"x": scores, "image_ids": torch.arange(6).bfloat16()}, "b.safetensors")
    assert open_matrix("b.safetensors").ids["image_ids"] == ["0.0", "1.0", "2.0", "3.0", "4.0", "5.0"]


def test_bfloat16_without_torch_names_the_extra(folder, monkeypatch):
    import torch

    save_file({"x": torch.from_numpy(SCORES).bfloat16()}, "a.safetensors")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingExtraError, match=r'^reading bfloat16 .* from a.safetensors needs torch: pip install "bcls'
    ):
        open_matrix("a.safetensors")


def test_a_colon_in_a_file_name_is_no_key(folder):
    np.savez("a.npz:b.npz", SCORES)
    assert np.array_equal(open_matrix("a.npz:b.npz").array, SCORES)


@pytest.mark.parametrize("name", ["a.npy", "a.npy.gz", "a.npz", "a.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not numbers", b"\x93NUMPY\x01\x00", b"PK\x03\x04rest"])
def test_damaged_files(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"expected a readable array file, got an error .*again$") as error:
        open_matrix(name)
    assert "\n" not in str(error.value)


def test_a_damaged_header(folder):
    np.save("a.npy", SCORES)
    content = (folder / "a.npy").read_bytes()
    (folder / "a.npy").write_bytes(content.replace(b"}", b"(", 1))
    with pytest.raises(ValueError, match=r"a\.npy`: expected a readable array file"):
        open_matrix("a.npy")


def test_an_archive_of_an_unknown_kind(folder):
    np.savez("a.npz", SCORES)
    content = (folder / "a.npz").read_bytes()
    (folder / "a.npz").write_bytes(content.replace(b"PK\x01\x02-\x03-\x00", b"PK\x01\x02-\x03\xff\x00", 1))
    with pytest.raises(ValueError, match=r"a\.npz`: expected a readable array file"):
        open_matrix("a.npz")


def test_truncated_files(folder):
    np.save("a.npy", SCORES)
    np.savez_compressed("a.npz", SCORES)
    for name in ("a.npy", "a.npz"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) - 40])
        with pytest.raises(ValueError, match="readable array file"):
            open_matrix(name)


def test_no_code_is_run_from_a_file(folder):
    class Trap:
        def __reduce__(self):
            return (folder.joinpath("ran").touch, ())

    np.save("a.npy", np.array([[Trap()]], dtype=object), allow_pickle=True)
    np.savez("a.npz", np.array([[Trap()]], dtype=object))
    (folder / "b.npy").write_bytes(np.array([[Trap()]], dtype=object).dumps())
    for name in ("a.npy", "a.npz", "b.npy"):
        with pytest.raises(ValueError, match="readable array file"):
            open_matrix(name)
    assert not (folder / "ran").exists()


def test_a_plain_array_called_npz(folder):
    with open("a.npz", "wb") as file:
        np.save(file, SCORES)
    with pytest.raises(ValueError, match=r"one plain array; give it the ending \.npy"):
        open_matrix("a.npz")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((2, 3, 4)), r"shape \(2, 3, 4\)"),
        (np.zeros((3, 2), dtype=complex), "dtype complex128"),
        (np.array([["a"]]), "dtype <U1"),
    ],
)
def test_arrays_that_are_not_real_matrices(folder, array, message):
    np.save("a.npy", array)
    with pytest.raises(ValueError, match=message):
        open_matrix("a.npy")


def test_an_empty_matrix(folder):
    np.save("a.npy", np.zeros((0, 3)))
    with pytest.raises(ValueError, match=r"a\.npy"):
        open_matrix("a.npy")


def test_other_endings_and_missing_files(folder):
    with pytest.raises(ValueError, match=r"`a\.pth`: expected a file that ends in .*, got \.pth; save it with numpy"):
        open_matrix("a.pth")
    with pytest.raises(FileNotFoundError, match=r"a\.npz"):
        open_matrix("a.npz:x")


def lying(shape, kind="<f4", *, version=1, data=b"\0" * 24):
    """An array whose header promises more than follows."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes((version, 0)) + len(header).to_bytes(2 if version == 1 else 4, "little") + header + data


def packed(name, content):
    """The content as the file's ending says."""
    if name.endswith(".gz"):
        return gzip.compress(content)
    if name.endswith(".npy"):
        return content
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", content)
    return archive.getvalue()


@pytest.mark.parametrize("name", ["a.npy", "a.npy.gz", "a.npz"])
@pytest.mark.parametrize("shape", [(2**20, 2**12), (2**40, 2**10), (2**62, 8), (2**70, 1), (-1, 3), (2, -3), (-2, -3)])
@pytest.mark.parametrize("version", [1, 2])
def test_no_memory_is_allocated_for_a_false_header(folder, name, shape, version):
    (folder / name).write_bytes(packed(name, lying(shape, version=version)))
    with below(8 * 2**20), pytest.raises(ValueError, match="expected a readable array file"):
        open_matrix(name)


@pytest.mark.parametrize("name", ["a.npy", "a.npy.gz", "a.npz"])
def test_an_endless_header_is_not_read(folder, name):
    start = b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little")
    (folder / name).write_bytes(packed(name, start + b" " * 2**25))
    with pytest.raises(ValueError, match=r"got an error \(a header of 2147483648 bytes\)"):
        open_matrix(name)


def test_ids_with_a_header_larger_than_the_data(folder):
    with zipfile.ZipFile("a.npz", "w") as file:
        for key, content in (("x", npy(SCORES)), ("image_ids", lying((2**40,), "<U9"))):
            file.writestr(f"{key}.npy", content)
    with pytest.raises(ValueError, match=r"24 of the 39582418599936 bytes of an array of shape \(1099511627776,\)"):
        open_matrix("a.npz")


@pytest.mark.parametrize("name", ["a.npy", "a.npy.gz", "a.npz"])
@pytest.mark.parametrize("kind", ["float16", "float64", ">f4", "int8", "uint64", "bool"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_packed_arrays_are_what_numpy_reads(folder, name, kind, order):
    array = np.asarray(SCORES * 10, kind, order=order)
    (folder / name).write_bytes(packed(name, npy(array)))
    found = open_matrix(name).array
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_an_array_of_several_parts(folder):
    array = np.random.default_rng(0).random((700, 600))  # 3.2 MiB
    for name in ("a.npy.gz", "a.npz"):
        (folder / name).write_bytes(packed(name, npy(array)))
        assert np.array_equal(open_matrix(name).array, array)


def test_a_checksum_that_disagrees(folder):
    content = bytearray(packed("a.npy.gz", npy(SCORES)))
    content[-8] ^= 1
    (folder / "a.npy.gz").write_bytes(content)
    with pytest.raises(ValueError, match="CRC check failed"):
        open_matrix("a.npy.gz")


def test_an_archive_called_npy(folder):
    (folder / "a.npy").write_bytes(packed("a.npz", npy(SCORES)))
    with pytest.raises(ValueError, match="readable array file"):
        open_matrix("a.npy")


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
