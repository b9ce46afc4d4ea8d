import io
import struct
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from bcls.data.image_files import SUFFIXES
from bcls.data.images import FORMATS, decode, decode_with_format, image_size, random_view
from tests.data.factories import image_bytes


def one_line(caught):
    assert "\n" not in str(caught.value)
    return str(caught.value)


def raw_file(kind, *previews):
    """A RAW file: a TIFF structure with an orientation of 6, sensor data, a thumbnail and previews."""
    tags = {0x112: 6, 0xFE: 1, 0x14A: 0}
    if kind == "dng":
        tags = {0x112: 6, 0xC612: 1}
    if kind in {"cr2", "orf", "cr3"}:
        tags = {0x112: 6}
    start = 16 if kind == "cr2" else 8
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, tags[tag]) for tag in sorted(tags))
    head = {"orf": b"IIRO", "raf": b"FUJIFILMCCD-RAW "}.get(kind, b"II*\0")
    structure = head + struct.pack("<I", start) + b"CR\2\0\0\0\0\0" * (kind == "cr2")
    structure += struct.pack("<H", len(tags)) + entries + b"\0\0\0\0"
    if kind == "cr3":
        structure = b"\0\0\0\x18ftypcrx moov\0\0\0\0CMT1" + structure
    thumbnail = image_bytes(1, (8, 6), "JPEG") if previews else b""
    return structure + bytes(500) + thumbnail + bytes(50) + b"".join(previews) + bytes(range(256))


class TestDecode:
    @pytest.mark.parametrize(
        ("file_format", "mode"),
        [("PNG", "RGB"), ("PNG", "L"), ("PNG", "1"), ("PNG", "P"), ("JPEG", "CMYK"), ("JPEG", "L"), ("TIFF", "CMYK"),
         ("WEBP", "RGB"), ("GIF", "P"), ("BMP", "RGB"), ("PNG", "LA"), ("PNG", "RGBA")],
    )  # fmt: skip
    def test_every_mode_becomes_rgb(self, file_format, mode):
        image = decode(image_bytes(1, file_format=file_format, mode=mode), "a")
        assert image.mode == "RGB"
        assert image.size == (32, 24)

    def test_16_bits_are_scaled_not_clipped(self):
        values = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
        written = io.BytesIO()
        Image.fromarray(values).save(written, "PNG")
        got = np.asarray(decode(written.getvalue(), "a"))[..., 0]
        np.testing.assert_allclose(got, values / 257, atol=1)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            (np.array([[0, 0.5, 1]], np.float32), [0, 127, 255]),
            (np.array([[0, 100, 255]], np.float32), [0, 100, 255]),
            (np.array([[0, np.nan, 65535]], np.float32), [0, 0, 255]),
            (np.array([[-2, 0, 2]], np.float32), [0, 127, 255]),
            (np.array([[0, 2**20, 2**21]], np.int32), [0, 127, 255]),
            (np.array([[-100, 0, 155]], np.int32), [0, 100, 255]),
            (np.array([[0, 2**31, 2**32 - 1]], np.uint32), [0, 127, 255]),
        ],
    )
    @pytest.mark.parametrize("orientation", [1, 3])
    def test_floats_and_32_bits_are_scaled(self, values, expected, orientation):
        image = Image.fromarray(values.view(np.int32) if values.dtype == np.uint32 else values)
        written = io.BytesIO()
        image.save(written, "TIFF", tiffinfo={274: orientation})
        content = written.getvalue()
        if values.dtype == np.uint32:  # Pillow cannot write these
            signed, unsigned = (struct.pack("<HHIH", 339, 3, 1, one) for one in (2, 1))
            assert content.count(signed) == 1
            content = content.replace(signed, unsigned)
        got = np.asarray(decode(content, "a"))[0, :, 0]
        np.testing.assert_allclose(got[::-1] if orientation == 3 else got, expected, atol=1)

    @pytest.mark.parametrize(
        "file_format", ["PPM", "JPEG2000", "AVIF", "TGA", "PCX", "QOI", "SGI", "DDS", "MPO", "DIB"]
    )
    def test_other_formats_of_pillow(self, file_format):
        if file_format == "AVIF":
            pytest.importorskip("PIL.AvifImagePlugin")
        content = image_bytes(1, file_format=file_format)
        image, found, _ = decode_with_format(content, "a")
        assert (image.mode, image.size) == ("RGB", (32, 24))
        assert found in {file_format, "JPEG"}  # an MPO file of one image is a JPEG file

    def test_formats_that_pillow_only_reads(self):
        pixels, bitmap, page = bytes(range(48)), image_bytes(1, (4, 4), "DIB"), image_bytes(1, (4, 4), "PCX")
        double = bitmap[:8] + struct.pack("<I", 8) + bitmap[12:] + bytes(16)  # a cursor has a mask below the bitmap
        files = {
            "CUR": struct.pack("<HHHBBBBHHII", 0, 2, 1, 4, 4, 0, 0, 0, 0, len(double), 22) + double,
            "DCX": struct.pack("<III", 987654321, 12, 0) + page,
            "FTEX": b"FTEX" + struct.pack("<8i", 0, 4, 4, 1, 1, 1, 32, 48) + pixels,
            "GBR": struct.pack(">IIIII", 20, 1, 4, 4, 1) + bytes(range(16)),
            "PCD": bytes(2048) + b"PCD_" + bytes(768 * 512 * 2 + 96 * 2048),
            "PIXAR": b"\200\350\0\0" + bytes(412) + struct.pack("<6H", 4, 4, 0, 0, 14, 2) + bytes(596) + pixels,
        }
        for file_format, content in files.items():
            image, found, _ = decode_with_format(content, "a")
            assert (found, image.mode) == (file_format, "RGB")
            assert image.size == ((768, 512) if file_format == "PCD" else (4, 4))

    def test_extensions_are_those_of_the_formats(self):
        extensions = Image.registered_extensions()
        formats = {*FORMATS, "MPO", "HEIF"}  # Pillow opens MPO files as JPEG files
        assert SUFFIXES.issuperset(one for one, file_format in extensions.items() if file_format in formats)
        assert SUFFIXES.isdisjoint(one for one, file_format in extensions.items() if file_format not in formats)

    def test_heic(self):
        pillow_heif = pytest.importorskip("pillow_heif")
        written = io.BytesIO()
        pillow_heif.from_pillow(Image.new("RGB", (32, 24), "red")).save(written)
        image, file_format, _ = decode_with_format(written.getvalue(), "a")
        assert (image.size, file_format) == ((32, 24), "HEIF")
        assert image.getpixel((4, 4))[0] > 200

    def test_heic_without_its_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
        for brands in (b"heic", b"mif1\0\0\0\0mif1heic"):
            with pytest.raises(
                ValueError,
                match=r'^`a.heic`: expected the package pillow-heif, for HEIC, got none; pip install "bcls\[heif\]"',
            ):
                decode(b"\0\0\0\x18ftyp" + brands, "a.heic")

    @pytest.mark.parametrize("kind", ["dng", "nef", "cr2", "orf", "raf", "cr3"])
    def test_preview_of_a_raw_file(self, kind):
        image = decode(raw_file(kind, image_bytes(2, (40, 30), "JPEG")), "a")
        assert image.size == ((40, 30) if kind == "raf" else (30, 40))  # turned by the EXIF data of the RAW file

    def test_raw_file_without_preview(self):
        with pytest.raises(ValueError, match=r"^`a`: expected a RAW file with a JPEG preview, got none"):
            decode(raw_file("nef"), "a")
        wide = bytearray(image_bytes(2, (400, 300), "JPEG"))
        wide[wide.index(b"\xff\xc0") + 4] = 14  # bits of a sensor
        image = decode(raw_file("nef", bytes(wide), image_bytes(2, (40, 30), "JPEG")), "a")
        assert image.size == (30, 40)

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

    def test_exif_orientation_is_applied(self):
        exif = Image.Exif()
        exif[0x0112] = 6
        assert decode(image_bytes(1, file_format="JPEG", exif=exif), "a").size == (24, 32)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "an empty file"),
            (b"not an image", "12 bytes of something else"),
            (image_bytes(1, (200, 200), "JPEG")[:1500], "a damaged one"),
            (image_bytes(1, (200, 200), "PNG")[:400], "a damaged one"),
            (image_bytes(1, (200, 200), "WEBP")[:200], "a complete image|something else"),
        ],
    )
    def test_damaged(self, content, message):
        with pytest.raises(ValueError, match=message) as caught:
            decode(content, "here.jpg")
        assert one_line(caught).startswith("`here.jpg`")

    @pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
    def test_too_many_pixels(self, monkeypatch):
        with pytest.raises(ValueError, match="at most 100 pixels, got 32 x 24"):
            decode(image_bytes(), "a", max_pixels=100)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
        with pytest.raises(ValueError, match=r"at most 20 pixels, Pillow's limit, got more; raise PIL.Image.MAX"):
            decode(image_bytes(), "a")
        with pytest.raises(ValueError, match="at most 15 pixels, got many more"):
            decode(image_bytes(), "a", max_pixels=15)

    @settings(max_examples=150)
    @given(st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "TIFF", "PPM", "JPEG2000", "TGA", "QOI", "PCX"]), st.data())
    def test_damage_never_raises_anything_else(self, file_format, data):
        content = bytearray(image_bytes(3, file_format=file_format))
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        content = content[: data.draw(st.integers(0, len(content)))]
        try:
            assert decode(bytes(content), "a", max_pixels=100_000).mode == "RGB"
        except ValueError as error:
            assert str(error).startswith("`a`: expected")  # noqa: PT017


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 3, 5, 8])
def test_size_is_that_of_the_decoded_image(file_format, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    content = image_bytes(0, (30, 20), file_format, exif=exif)
    assert image_size(content, "a") == decode(content, "a").size


def test_size_of_something_else():
    for content in (b"", b"text", image_bytes(0)[:20]):
        with pytest.raises(ValueError, match="`a`: expected an image"):
            image_size(content, "a")


def noise(size):
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [(40, 30), (3, 200), (1, 1), (200, 3)])
def test_crops_stay_inside(size):
    image = noise(size)
    for caption in range(20):
        view = random_view(image, (1, 0, caption), 0.5)
        assert view.width <= size[0]
        assert view.height <= size[1]
        assert min(view.size) > 0
        if size == (40, 30):
            assert view.width * view.height >= 0.45 * 40 * 30


def test_view_is_a_crop_mirrored_half_of_the_time():
    ramp = Image.fromarray(np.broadcast_to(np.arange(0, 200, 2, dtype=np.uint8)[None, :, None], (80, 100, 3)).copy())
    rising = [np.asarray(random_view(ramp, (seed,), 0.3))[0, :, 0].astype(int) for seed in range(60)]
    assert all(abs(np.diff(row)).tolist() == [2] * (len(row) - 1) for row in rising)
    mirrored = sum(row[0] > row[-1] for row in rising)
    assert 15 < mirrored < 45


def test_the_seed_alone_decides():
    image = noise((50, 40))
    assert random_view(image, (2**64 - 1, 3), 0.5).tobytes() == random_view(image, (2**64 - 1, 3), 0.5).tobytes()
    assert len({random_view(image, (1, view), 0.5).tobytes() for view in range(10)}) == 10


@pytest.mark.parametrize("orientation", [1, 6])
def test_reduced_jpeg(orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((1600, 1200)).convert("RGB").save(buffer, "JPEG", exif=exif)
    whole = decode(buffer.getvalue(), "a.jpg")
    small = decode(buffer.getvalue(), "a.jpg", side=150)
    assert small.size == (whole.width // 4, whole.height // 4)
    difference = np.asarray(small, float) - np.asarray(whole.resize(small.size, Image.Resampling.BOX), float)
    assert np.abs(difference).max() < 4
