"""``bcls export``: a trained model for use elsewhere."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bcls._core.errors import check_choice, fail
from bcls.cli.arguments import parse, places

ABOUT = (
    "Writes a model for use elsewhere: as ONNX files of its two towers, checked against torch, or as the folder that "
    "the Hugging Face Hub takes. MODEL is a run folder, of which the best checkpoint is taken, the folder of a model, "
    "or a name."
)


@dataclass(frozen=True)
class ExportSettings:
    """Settings of ``bcls export``."""

    out: str
    """Folder to write; an earlier export there is replaced whole."""
    format: str = "onnx"
    """onnx for image.onnx and text.onnx, folder for config and weights."""
    regions: bool = False
    """With onnx, of a model that takes features: images are regions, not vectors."""
    json: bool = False
    """Print what was written as JSON."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    (name,), flags = places("export", arguments, ("MODEL",), "export runs/flickr8k --out towers")
    settings = parse("export MODEL", ABOUT, ExportSettings, flags)
    check_choice("--format", settings.format, ("onnx", "folder"))
    if settings.format == "folder":
        return _folder(name, settings)
    # Here, not above: `--help` need not wait for them.
    from bcls.models import load
    from bcls.models.export import export_onnx, trained_features

    exported = export_onnx(load(name), settings.out, regions=settings.regions, features=trained_features(name))
    if settings.json:
        print(json.dumps({"out": settings.out, "format": "onnx", **asdict(exported)}))
        return 0
    shape = " x ".join(map(str, exported.image_shape))
    print(f"image.onnx takes {exported.images} ({shape}), text.onnx token ids; vectors have {exported.width} entries")
    largest = max(exported.image_difference, exported.text_difference)
    print(f"largest difference to torch {largest:.1e}, allowed {exported.tolerance:g}")
    print(f"written to {settings.out}; its README.md shows how to use it")
    return 0


def _folder(name: str, settings: ExportSettings) -> int:
    if settings.regions:
        fail("--regions", "it with --format onnx", "--format folder", "leave it out")
    from bcls.models import load

    load(name).save_pretrained(settings.out)
    if settings.json:
        print(json.dumps({"out": settings.out, "format": "folder"}))
    else:
        print(f"written to {settings.out}; load it with bcls.models.load, or upload it with `hf upload`")
    return 0
