import multiprocessing
import os
import pickle
import stat
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcls.data.image_files import FolderStore, ZipStore, check_member, match_names, open_store
from tests.data.factories import add_to_tar, image_bytes, make_images

NAMES = ["a/1.png", "b/2.png", "3.PNG"]


def one_line(caught):
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
class TestStores:
    def test_names_and_bytes(self, tmp_path, kind):
        store = open_store(make_images(tmp_path / "images", NAMES, kind))
        assert sorted(store.names()) == sorted(NAMES)
        assert [store.read(name) for name in NAMES] == [image_bytes(seed) for seed in range(3)]

    def test_other_files_are_not_images(self, tmp_path, kind):
        store = open_store(make_images(tmp_path / "images", ["1.png", "notes.txt", "__MACOSX/._1.png"], kind))
        assert store.names() == ("1.png",)

    def test_a_missing_name(self, tmp_path, kind):
        store = open_store(make_images(tmp_path / "images", NAMES, kind))
        with pytest.raises(FileNotFoundError):
            store.read("4.png")

    def test_many_threads(self, tmp_path, kind):
        names = [f"{number}.png" for number in range(30)]
        store = open_store(make_images(tmp_path / "images", names, kind))
        with ThreadPoolExecutor(8) as pool:
            read = list(pool.map(store.read, names * 5))
        assert read == [image_bytes(seed) for seed in range(30)] * 5

    def test_stores_work_in_other_processes(self, tmp_path, kind):
        store = open_store(make_images(tmp_path / "images", NAMES, kind))
        store.read("3.PNG")
        assert pickle.loads(pickle.dumps(store)).read("3.PNG") == image_bytes(2)  # noqa: S301
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(store.read, NAMES * 4) == [image_bytes(seed) for seed in range(3)] * 4

    def test_a_fork_while_a_thread_reads(self, tmp_path, kind):
        store = open_store(make_images(tmp_path / "images", NAMES, kind))
        with getattr(store, "_lock", nullcontext()):
            child = multiprocessing.get_context("fork").Process(target=store.read, args=(NAMES[0],))
            child.start()
        child.join(20)
        hangs = child.is_alive()
        child.kill()
        assert (hangs, child.exitcode) == (False, 0)

    def test_names_outside_the_folder_are_not_read(self, tmp_path, kind):
        store = open_store(make_images(tmp_path / "images", NAMES, kind))
        with pytest.raises((ValueError, FileNotFoundError)):
            store.read("../secret.png")


class TestTars:
    def test_no_file_stays_open(self, tmp_path):
        names = [f"{number}.png" for number in range(3)]
        stores = [open_store(make_images(tmp_path / str(number), names, "tar")) for number in range(5)]
        before = len(os.listdir("/proc/self/fd"))
        assert [store.read("1.png") for store in stores] == [image_bytes(1)] * 5
        assert len(os.listdir("/proc/self/fd")) == before

    def test_one_that_ends_in_a_zip(self, tmp_path):
        inner = make_images(tmp_path / "inner", ["b.png"], "zip").read_bytes()
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            add_to_tar(archive, "a.png", image_bytes(0))
            add_to_tar(archive, "a.npz", inner)
        assert open_store(tmp_path / "a.tar").names() == ("a.png",)


class TestRefused:
    @pytest.mark.parametrize("name", ["/etc/a.png", "../a.png", "a/../../b.png", "..\\a.png", "C:/a.png"])
    @pytest.mark.parametrize("kind", ["zip", "tar"])
    def test_names_outside_the_archive(self, tmp_path, kind, name):
        store = open_store(make_images(tmp_path / "images", [name], kind))
        with pytest.raises(ValueError, match="names inside the archive") as caught:
            store.names()
        assert f"images.{kind}" in one_line(caught)

    def test_links_in_a_tar(self, tmp_path):
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
            with tarfile.open(tmp_path / "a.tar", "w") as archive:
                add_to_tar(archive, "a.png", b"", type=kind, linkname="/etc/passwd")
            with pytest.raises(ValueError, match=r"link or device 'a\.png'"):
                open_store(tmp_path / "a.tar").names()

    def test_links_in_a_zip(self, tmp_path):
        info = zipfile.ZipInfo("a.png")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr(info, "/etc/passwd")
        with pytest.raises(ValueError, match=r"the link 'a\.png'"):
            open_store(tmp_path / "a.zip").names()

    def test_absurd_sizes(self, tmp_path, monkeypatch):
        monkeypatch.setattr("bcls.data.image_files.MAX_BYTES", 10)
        for kind in ("zip", "tar"):
            store = open_store(make_images(tmp_path / "images", ["a.png"], kind))
            with pytest.raises(ValueError, match="at most 10 bytes"):
                store.names()
        with pytest.raises(ValueError, match="at most 10 bytes"):
            open_store(make_images(tmp_path / "images", ["a.png"])).read("a.png")

    def test_passwords(self, tmp_path):
        path = make_images(tmp_path / "images", ["a.png"], "zip")
        content = bytearray(path.read_bytes())
        content[content.index(b"PK\x01\x02") + 8] |= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match="without a password"):
            open_store(path).names()

    def test_other_compressions(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "images.zip", "w", zipfile.ZIP_BZIP2) as archive:
            archive.writestr("a.png", image_bytes(0))
        with pytest.raises(
            ValueError, match=r"images\.zip: a\.png`: expected a stored or deflated member, .* bzip2; pack"
        ):
            open_store(tmp_path / "images.zip").read("a.png")

    def test_damaged_archives(self, tmp_path):
        path = make_images(tmp_path / "images", ["a.png"], "zip")
        content = bytearray(path.read_bytes())
        content[60] ^= 255
        path.write_bytes(content)
        with pytest.raises(ValueError, match="a damaged one"):
            open_store(path).read("a.png")
        path.write_bytes(b"PK\x03\x04 no more")
        with pytest.raises(ValueError, match="expected a folder, a zip or an uncompressed tar"):
            open_store(path)
        with pytest.raises(ValueError, match="expected a zip file"):
            ZipStore(path).names()

    def test_a_tar_cut_short(self, tmp_path):
        path = make_images(tmp_path / "images", ["a.png", "b.png"], "tar")
        size = len(image_bytes(0))
        path.write_bytes(path.read_bytes()[: 512 + size - 20])
        with pytest.raises(ValueError, match=r"truncated|damaged"):
            open_store(path).read("a.png")

    def test_other_files(self, tmp_path):
        for name, content in {"a.gz": b"\x1f\x8b..", "b": b"", "c": b"text"}.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ValueError, match="a folder, a zip or an uncompressed tar"):
                open_store(tmp_path / name)
        with pytest.raises(FileNotFoundError):
            open_store(tmp_path / "nothing.zip")

    def test_names_that_cannot_be_encoded(self):
        with pytest.raises(ValueError, match=r"`x`: expected valid file names, got 'a\\ud800.png'"):
            check_member("x", "a\ud800.png")
        assert check_member("x", "caf\udce9.png")  # Latin-1 on a disk: Python's way to write it

    @given(st.text(max_size=30))
    def test_accepted_names_stay_inside_the_folder(self, name):
        try:
            check_member("x", name)
        except ValueError:
            return
        assert os.path.normpath(os.path.join("/base", name)).startswith("/base")


class TestMatch:
    def test_full_names_match_first(self):
        match = match_names(["a/1.jpg", "1.jpg", "1"], ["a/1.jpg", "1.jpg", "b/1.png"])
        assert match.files == ("a/1.jpg", "1.jpg", None)
        assert match.notes == ()

    def test_a_file_goes_to_one_name_only(self):
        assert match_names(["cats/1.png", "dogs/1.png"], ["cats/1.png"]).files == ("cats/1.png", None)
        match = match_names(["1.jpg", "1.png", "2.jpg"], ["1.png", "2.png"])
        assert match.files == (None, "1.png", "2.png")
        assert match.notes == ("1 image has another file extension than in the captions (.png for .jpg)",)
        assert match_names(["cats/1.png", "dogs/1.png"], ["1.png"]).files == (None, None)
        assert match_names(["a/1.jpg", "b/1.gif"], ["1.png"]).files == (None, None)

    def test_names_that_several_files_share_match_none(self):
        assert match_names(["1.jpg", "c/1.jpg"], ["a/1.jpg", "b/1.jpg"]).files == (None, None)

    def test_names_of_other_systems(self):
        match = match_names(
            ["cats\\1.png", "./dogs/1.png", "caf\u00e9.png"], ["cats/1.png", "dogs/1.png", "cafe\u0301.png"]
        )
        assert match.files == ("cats/1.png", "dogs/1.png", "cafe\u0301.png")
        assert match.notes == ()

    def test_upper_and_lower_case(self):
        match = match_names(["dog.jpg", "CAT.jpg", "IMG_2.JPG"], ["Dog.JPG", "cat.jpg", "a/img_2.JPG", "b/Img_2.JPG"])
        assert match.files == ("Dog.JPG", "cat.jpg", None)
        assert match.notes == ("1 image has another file extension than in the captions (.JPG for .jpg)",)
        assert match_names(["a.jpg", "A.jpg"], ["A.jpg", "a.jpg"]).files == ("a.jpg", "A.jpg")

    def test_dots_in_a_stem(self):
        match = match_names(["a.b", "a.c.jpg"], ["x/a.b.png", "a.c.webp"])
        assert match.files == ("x/a.b.png", "a.c.webp")
        assert match.notes == (
            "2 images have another file extension than in the captions (.png for none, .webp for .jpg)",
        )

    @given(st.lists(st.from_regex(r"[a-c]{1,2}(/[a-c])?\.(jpg|png)", fullmatch=True), unique=True))
    def test_every_file_finds_itself(self, names):
        match = match_names(names, names)
        assert match.files == tuple(names)


def test_folder_that_cannot_be_listed_raises(tmp_path, monkeypatch):
    make_images(tmp_path, ["a/1.png", "b/2.png"])
    real = os.scandir

    def refused(path):
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(PermissionError) as output:
        open_store(tmp_path).names()
    assert output.value.filename == str(tmp_path / "b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.timeout(20)
def test_named_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(ValueError, match="expected a regular file, got a pipe, device or folder"):
        FolderStore(tmp_path).read("a.jpg")
