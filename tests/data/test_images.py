import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bcls.data.images import decode, decode_with_format, random_view
from tests.data.factories import image_bytes


def one_line(caught):
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
    @given(st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "TIFF"]), st.data())
    def test_damage_never_raises_anything_else(self, file_format, data):
        content = bytearray(image_bytes(3, file_format=file_format))
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        content = content[: data.draw(st.integers(0, len(content)))]
        try:
            assert decode(bytes(content), "a", max_pixels=100_000).mode == "RGB"
        except ValueError as error:
            assert str(error).startswith("`a`: expected")  # noqa: PT017


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
