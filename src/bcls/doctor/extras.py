"""Which optional parts are installed, from the package's own list of requirements."""

import re
from collections.abc import Iterable
from importlib import metadata

from bcls.doctor.report import Line, Section
from bcls.doctor.versions import version_of

#: What each extra is for; which packages it brings is told by the package's metadata alone.
PURPOSES = {
    "arrow": "reading Parquet files and saved Hugging Face datasets",
    "caption-metrics": "CIDEr-D, METEOR and SPICE as labels",
    "eval": "the ground truth of ECCV Caption and CxC",
    "hub": "models from the Hugging Face Hub",
    "index": "an index of photos",
    "jobs": "feature extraction over several machines",
    "kernels": "fused losses on NVIDIA GPUs",
    "lora": "training CLIP with LoRA",
    "milvus": "an index in Milvus",
    "onnx": "exporting models",
    "photos": "features of photos by packaged networks",
    "plots": "drawings in reports",
    "text": "labels and queries by packaged text encoders",
    "track": "curves in TensorBoard",
    "web": "search in the browser",
}
#: Extras that only gather others, or serve those who work on the package.
_NOT_FOR_A_USE = {"all", "dev"}


def brings(requirements: Iterable[str]) -> dict[str, list[str]]:
    """The packages of each extra.

    Args:
        requirements: As ``importlib.metadata.requires`` gives them.

    Example:
        >>> brings(["numpy>=1.26", "faiss-cpu>=1.9; extra == 'index'", 'bcls[index]; extra == "all"'])
        {'index': ['faiss-cpu']}
    """
    found: dict[str, list[str]] = {}
    for requirement in requirements:
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", requirement)
        name = re.match(r"[\w.-]+", requirement)
        if extra and name and extra[1] not in _NOT_FOR_A_USE:
            found.setdefault(extra[1], []).append(name[0])
    return found


def extras() -> Section:
    """Each extra with its versions, or what it would be for; one that is missing is no problem."""
    try:
        listed = brings(metadata.requires("bcls") or ())
    except metadata.PackageNotFoundError:
        return Section("extras", (Line("bcls", "runs from its source and is not installed: the extras are not known"),))
    return Section("extras", tuple(_line(extra, packages) for extra, packages in sorted(listed.items())))


def _line(extra: str, packages: list[str]) -> Line:
    purpose = PURPOSES.get(extra, "")
    versions = {package: version_of(package) for package in packages}
    missing = [package for package, version in versions.items() if version is None]
    if len(missing) == len(packages):
        return Line(extra, f'not installed, for {purpose}: pip install "bcls[{extra}]"')
    if missing:
        return Line(extra, f'without {", ".join(missing)}, for {purpose}: pip install "bcls[{extra}]"')
    return Line(extra, ", ".join(f"{package} {version}" for package, version in versions.items()))
