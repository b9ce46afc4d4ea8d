"""Towers that see pictures as ONNX files, from checkpoints of transformers and from packages."""

import pytest
import torch
from PIL import ExifTags, Image

from bcls.models.config import build
from bcls.models.export import TOLERANCE, export_onnx
from tests.export.checking import check, run_readme
from tests.models.dual import made


@pytest.mark.parametrize("kind", ["clip", pytest.param("siglip", marks=pytest.mark.slow)])
def test_two_towers_of_one_checkpoint(tmp_path, kind):
    folder = getattr(made, kind)(tmp_path / "checkpoint")
    model = build({"name": "dual", "image": "clip", "model": str(folder)})
    out = tmp_path / "towers"
    exported = export_onnx(model, out)
    pictures = [made.picture(50, 40, seed=3), made.picture(33, 80, seed=4)]
    check(model, out, exported, [pictures * 2, pictures[:1]])
    # A photo of a camera that was held upright, and one that is transparent in places.
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    pictures[0].save(out / "a.jpg", exif=turned)
    pictures[1].putalpha(Image.linear_gradient("L").resize(pictures[1].size))
    pictures[1].save(out / "b.jpg", format="PNG")
    expected = model.similarity([out / "a.jpg", out / "b.jpg"], ["a dog runs", "two people eat lunch"])
    torch.testing.assert_close(run_readme(out), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("view", ["whole", "six-crop"])
def test_one_look_or_several_at_a_picture(tmp_path, view):
    sides = {"image": str(made.vit(tmp_path / "vit")), "text": str(made.bert(tmp_path / "bert"))}
    model = build({"name": "dual", **sides, "width": 6, "image_view": view})
    exported = export_onnx(model, tmp_path / "towers")
    pictures = [made.picture(50, 40, seed=3), made.picture(33, 80, seed=4)]
    check(model, tmp_path / "towers", exported, [pictures * 2, pictures[:1]])


def test_regions_of_pictures_are_refused(tmp_path):
    model = build({"name": "dual", "image": "clip", "model": str(made.clip(tmp_path / "checkpoint"))})
    with pytest.raises(ValueError, match="`regions`: expected a model that takes features"):
        export_onnx(model, tmp_path / "towers", regions=True)


@pytest.mark.slow
def test_packaged_encoders(tmp_path):
    model = build({"name": "dual", "image": "efficientnet-lite0", "width": 16})
    out = tmp_path / "towers"
    exported = export_onnx(model, out)
    pictures = [made.picture(300, 200, seed=3), made.picture(120, 180, seed=4)]
    check(model, out, exported, [pictures, pictures[:1]])
    for name, picture in zip(("a.jpg", "b.jpg"), pictures, strict=True):
        picture.save(out / name, format="PNG")
    expected = model.similarity(pictures, ["a dog runs", "two people eat lunch"])
    torch.testing.assert_close(run_readme(out), expected, atol=TOLERANCE, rtol=0)
