import io
import multiprocessing
import os
import pickle
import stat
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bcls.data.image_files import ZipStore, check_member, match_names, open_store
from bcls.data.images import decode, decode_with_format
from tests.data.made import add_to_tar, make_pictures, picture

NAMES = ["a/1.png", "b/2.png", "3.PNG"]


def one_line(caught):
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
class TestStores:
    def test_names_and_bytes(self, tmp_path, kind):
        store = open_store(make_pictures(tmp_path / "images", NAMES, kind))
        assert sorted(store.names()) == sorted(NAMES)
        assert [store.read(name) for name in NAMES] == [picture(seed) for seed in range(3)]

    def test_other_files_are_not_pictures(self, tmp_path, kind):
        store = open_store(make_pictures(tmp_path / "images", ["1.png", "notes.txt", "__MACOSX/._1.png"], kind))
        assert store.names() == ("1.png",)

    def test_a_missing_name(self, tmp_path, kind):
        store = open_store(make_pictures(tmp_path / "images", NAMES, kind))
        with pytest.raises(FileNotFoundError):
            store.read("4.png")

    def test_many_threads(self, tmp_path, kind):
        names = [f"{number}.png" for number in range(30)]
        store = open_store(make_pictures(tmp_path / "images", names, kind))
        with ThreadPoolExecutor(8) as pool:
            read = list(pool.map(store.read, names * 5))
        assert read == [picture(seed) for seed in range(30)] * 5

    def test_travels_to_other_processes(self, tmp_path, kind):
        store = open_store(make_pictures(tmp_path / "images", NAMES, kind))
        store.read("3.PNG")
        assert pickle.loads(pickle.dumps(store)).read("3.PNG") == picture(2)  # noqa: S301
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(store.read, NAMES * 4) == [picture(seed) for seed in range(3)] * 4

    def test_a_fork_while_a_thread_reads(self, tmp_path, kind):
        store = open_store(make_pictures(tmp_path / "images", NAMES, kind))
        with getattr(store, "_lock", nullcontext()):
            child = multiprocessing.get_context("fork").Process(target=store.read, args=(NAMES[0],))
            child.start()
        child.join(20)
        hangs = child.is_alive()
        child.kill()
        assert (hangs, child.exitcode) == (False, 0)

    def test_names_that_lead_outside_are_not_read(self, tmp_path, kind):
        store = open_store(make_pictures(tmp_path / "images", NAMES, kind))
        with pytest.raises((ValueError, FileNotFoundError)):
            store.read("../secret.png")


class TestTars:
    def test_no_file_stays_open(self, tmp_path):
        names = [f"{number}.png" for number in range(3)]
        stores = [open_store(make_pictures(tmp_path / str(number), names, "tar")) for number in range(5)]
        before = len(os.listdir("/proc/self/fd"))
        assert [store.read("1.png") for store in stores] == [picture(1)] * 5
        assert len(os.listdir("/proc/self/fd")) == before

    def test_one_that_ends_in_a_zip(self, tmp_path):
        inner = make_pictures(tmp_path / "inner", ["b.png"], "zip").read_bytes()
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            add_to_tar(archive, "a.png", picture(0))
            add_to_tar(archive, "a.npz", inner)
        assert open_store(tmp_path / "a.tar").names() == ("a.png",)


class TestRefused:
    @pytest.mark.parametrize("name", ["/etc/a.png", "../a.png", "a/../../b.png", "..\\a.png", "C:/a.png"])
    @pytest.mark.parametrize("kind", ["zip", "tar"])
    def test_paths_that_lead_outside(self, tmp_path, kind, name):
        store = open_store(make_pictures(tmp_path / "images", [name], kind))
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
            store = open_store(make_pictures(tmp_path / "images", ["a.png"], kind))
            with pytest.raises(ValueError, match="at most 10 bytes"):
                store.names()
        with pytest.raises(ValueError, match="at most 10 bytes"):
            open_store(make_pictures(tmp_path / "images", ["a.png"])).read("a.png")

    def test_passwords(self, tmp_path):
        path = make_pictures(tmp_path / "images", ["a.png"], "zip")
        content = bytearray(path.read_bytes())
        content[content.index(b"PK\x01\x02") + 8] |= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match="without a password"):
            open_store(path).names()

    def test_damaged_archives(self, tmp_path):
        path = make_pictures(tmp_path / "images", ["a.png"], "zip")
        content = bytearray(path.read_bytes())
        content[60] ^= 255
        path.write_bytes(content)
        with pytest.raises(ValueError, match="a damaged one"):
            open_store(path).read("a.png")
        path.write_bytes(b"PK\x03\x04 no more")
        with pytest.raises(ValueError, match="expected a folder, a zip or a plain tar"):
            open_store(path)
        with pytest.raises(ValueError, match="expected a zip file"):
            ZipStore(path).names()

    def test_a_tar_cut_short(self, tmp_path):
        path = make_pictures(tmp_path / "images", ["a.png", "b.png"], "tar")
        size = len(picture(0))
        path.write_bytes(path.read_bytes()[: 512 + size - 20])
        with pytest.raises(ValueError, match=r"cut short|damaged"):
            open_store(path).read("a.png")

    def test_other_files(self, tmp_path):
        for name, content in {"a.gz": b"\x1f\x8b..", "b": b"", "c": b"text"}.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ValueError, match="a folder, a zip or a plain tar"):
                open_store(tmp_path / name)
        with pytest.raises(FileNotFoundError):
            open_store(tmp_path / "nothing.zip")

    def test_names_that_are_no_text(self):
        with pytest.raises(ValueError, match=r"`x`: expected names of files, got 'a\\ud800.png'"):
            check_member("x", "a\ud800.png")
        assert check_member("x", "caf\udce9.png")  # Latin-1 on a disk: Python's way to write it

    @given(st.text(max_size=30))
    def test_names_that_pass_stay_inside(self, name):
        try:
            check_member("x", name)
        except ValueError:
            return
        assert os.path.normpath(os.path.join("/base", name)).startswith("/base")


class TestDecode:
    @pytest.mark.parametrize(
        ("file_format", "mode"),
        [("PNG", "RGB"), ("PNG", "L"), ("PNG", "1"), ("PNG", "P"), ("JPEG", "CMYK"), ("JPEG", "L"), ("TIFF", "CMYK"),
         ("WEBP", "RGB"), ("GIF", "P"), ("BMP", "RGB"), ("PNG", "LA"), ("PNG", "RGBA")],
    )  # fmt: skip
    def test_every_mode_becomes_rgb(self, file_format, mode):
        image = decode(picture(1, file_format=file_format, mode=mode), "a")
        assert image.mode == "RGB"
        assert image.size == (32, 24)

    def test_16_bits_are_scaled_not_clipped(self):
        values = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
        written = io.BytesIO()
        Image.fromarray(values).save(written, "PNG")
        got = np.asarray(decode(written.getvalue(), "a"))[..., 0]
        np.testing.assert_allclose(got, values / 257, atol=1)

    def test_transparent_parts_are_white(self):
        written = io.BytesIO()
        Image.new("RGBA", (4, 4), (10, 20, 30, 0)).save(written, "PNG")
        assert decode(written.getvalue(), "a").getpixel((0, 0)) == (255, 255, 255)

    def test_a_transparent_colour_is_white(self):
        written = io.BytesIO()
        Image.new("RGB", (4, 4), (10, 20, 30)).save(written, "PNG", transparency=(10, 20, 30))
        assert decode(written.getvalue(), "a").getpixel((0, 0)) == (255, 255, 255)

    def test_the_first_frame_of_an_animation(self):
        frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
        written = io.BytesIO()
        frames[0].save(written, "GIF", save_all=True, append_images=frames[1:])
        image, file_format, count = decode_with_format(written.getvalue(), "a")
        assert (image.getpixel((0, 0)), file_format, count) == ((255, 0, 0), "GIF", 2)

    def test_the_camera_was_turned(self):
        exif = Image.Exif()
        exif[0x0112] = 6
        assert decode(picture(1, file_format="JPEG", exif=exif), "a").size == (24, 32)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "an empty file"),
            (b"not a picture", "13 bytes of something else"),
            (picture(1, (200, 200), "JPEG")[:1500], "a damaged one"),
            (picture(1, (200, 200), "PNG")[:400], "a damaged one"),
            (picture(1, (200, 200), "WEBP")[:200], "a whole picture|something else"),
        ],
    )
    def test_damaged(self, content, message):
        with pytest.raises(ValueError, match=message) as caught:
            decode(content, "here.jpg")
        assert one_line(caught).startswith("`here.jpg`")

    @pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
    def test_bombs(self, monkeypatch):
        with pytest.raises(ValueError, match="at most 100 pixels, got 32 x 24"):
            decode(picture(), "a", max_pixels=100)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
        with pytest.raises(ValueError, match=r"at most 20 pixels, Pillow's limit, got more; raise PIL.Image.MAX"):
            decode(picture(), "a")
        with pytest.raises(ValueError, match="at most 15 pixels, got many more"):
            decode(picture(), "a", max_pixels=15)

    @settings(max_examples=150)
    @given(st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "TIFF"]), st.data())
    def test_damage_never_raises_anything_else(self, file_format, data):
        content = bytearray(picture(3, file_format=file_format))
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        content = content[: data.draw(st.integers(0, len(content)))]
        try:
            assert decode(bytes(content), "a", max_pixels=100_000).mode == "RGB"
        except ValueError as error:
            assert str(error).startswith("`a`: expected")  # noqa: PT017


class TestMatch:
    def test_whole_names_first(self):
        match = match_names(["a/1.jpg", "1.jpg", "1"], ["a/1.jpg", "1.jpg", "b/1.png"])
        assert match.files == ("a/1.jpg", "1.jpg", None)
        assert match.notes == ()

    def test_a_file_goes_to_one_name_only(self):
        assert match_names(["cats/1.png", "dogs/1.png"], ["cats/1.png"]).files == ("cats/1.png", None)
        match = match_names(["1.jpg", "1.png", "2.jpg"], ["1.png", "2.png"])
        assert match.files == (None, "1.png", "2.png")
        assert match.notes == ("1 image has another file ending than in the captions (.png for .jpg)",)
        assert match_names(["cats/1.png", "dogs/1.png"], ["1.png"]).files == (None, None)
        assert match_names(["a/1.jpg", "b/1.gif"], ["1.png"]).files == (None, None)

    def test_names_that_several_files_share_match_none(self):
        assert match_names(["1.jpg", "c/1.jpg"], ["a/1.jpg", "b/1.jpg"]).files == (None, None)

    def test_dots_in_a_stem(self):
        match = match_names(["a.b", "a.c.jpg"], ["x/a.b.png", "a.c.webp"])
        assert match.files == ("x/a.b.png", "a.c.webp")
        assert match.notes == (
            "2 images have another file ending than in the captions (.png for none, .webp for .jpg)",
        )

    @given(st.lists(st.from_regex(r"[a-c]{1,2}(/[a-c])?\.(jpg|png)", fullmatch=True), unique=True))
    def test_every_file_finds_itself(self, names):
        match = match_names(names, names)
        assert match.files == tuple(names)


def test_a_folder_that_cannot_be_listed_is_told(tmp_path, monkeypatch):
    make_pictures(tmp_path, ["a/1.png", "b/2.png"])
    real = os.scandir

    def refused(path):
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(PermissionError) as told:
        open_store(tmp_path).names()
    assert told.value.filename == str(tmp_path / "b")
