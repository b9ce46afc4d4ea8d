"""``bcls export``: export a model to ONNX or to a folder for the Hugging Face Hub."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bcls._core.errors import check_choice, fail, quoted
from bcls.cli.arguments import parse


@dataclass(frozen=True)
class ExportSettings:
    """Export a model as ONNX files of its two towers, compared with torch, or as a folder for the Hugging Face Hub.

    MODEL is a run folder, whose best checkpoint is used, a model folder, or a name.

    Attributes:
        model: Run folder (its best checkpoint is exported), model folder, or name of a model.
        out: Folder to write. An earlier export in it is replaced.
        format: onnx for image.onnx and text.onnx, folder for configuration and weights.
        precision: With onnx, how large weights are stored: float16, float32 for twice the size, or int8, in which the
            text tower also computes, in half the time.
        regions: With onnx and a model that reads features: images are regions, not vectors.
        json: Print the result as JSON.
    """

    model: str
    out: str
    format: str = "onnx"
    precision: str = "float16"
    regions: bool = False
    json: bool = False


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("export", ExportSettings, arguments, positional={"model": "MODEL"}, imports=True)
    check_choice("--format", settings.format, ("onnx", "folder"))
    if settings.format == "folder" and settings.regions:
        fail("--regions", "--format onnx with it", "--format folder", "leave it out")
    from bcls.models import load
    from bcls.models.export import export_onnx, trained_features

    if settings.format == "folder":
        load(settings.model).save_pretrained(settings.out)
        _copy_calibration(settings)
        text = f"written to {settings.out}; load it with bcls.load_model, or upload it with `hf upload`"
        print(json.dumps({"out": settings.out, "format": "folder"}) if settings.json else text)
        return 0

    features = trained_features(settings.model)
    exported = export_onnx(
        load(settings.model), settings.out, regions=settings.regions, features=features, precision=settings.precision
    )
    _copy_calibration(settings)
    if settings.json:
        print(json.dumps({"out": settings.out, "format": "onnx", **asdict(exported)}))
        return 0
    shape = " x ".join(map(str, exported.image_shape))
    print(f"image.onnx takes {exported.images} ({shape}), text.onnx takes token ids; width {exported.width}")
    largest = max(exported.image_difference, exported.text_difference)
    # The cosine distance is checked if weights are rounded; the difference of an entry may then be larger.
    limit = "tolerance" if exported.precision == "float32" else "cosine distance at most"
    print(f"maximum difference of a vector's entry to torch {largest:.1e}, {limit} {exported.tolerance:g}")
    images = "PHOTOS" if exported.images == "pixels" else "DATASET --features NAME"
    command = f"bcls index {images} --out INDEX --model {quoted(settings.out)}"
    print(f"written to {settings.out}: index photos with `{command}`")
    return 0


def _copy_calibration(settings: ExportSettings) -> None:
    """Copy the calibration of the scores, if the model has one."""
    from bcls.models.folder import CALIBRATION, write_calibration
    from bcls.models.loading import find_folder

    folder = find_folder(settings.model)
    if found := {name: (folder / name).read_bytes() for name in CALIBRATION if (folder / name).is_file()}:
        write_calibration(Path(settings.out), found)
