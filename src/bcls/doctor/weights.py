"""Whether packaged weights are the published ones."""

import base64
from collections.abc import Callable, Iterator
from importlib import metadata, resources
from pathlib import Path

from bcls._extras import MissingExtraError
from bcls._weights import sha256_of
from bcls.doctor.record import recorded
from bcls.doctor.report import Line, Section

#: The weights of the model that ships in the package.
PHOTO = "models/photo/model.safetensors"


def weights() -> Section:
    """Every packaged network that is installed, checked as it is when it is loaded."""
    checks: dict[str, Callable[[], str]] = {
        "minilm": _minilm,
        "wordllama": _wordllama,
        **{name: _backbone(name) for name in ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")},
    }
    return Section("weights", (*(_line(name, check) for name, check in checks.items()), photo()))


def _line(name: str, check: Callable[[], str]) -> Line:
    try:
        return Line(name, f"as published, sha256 {check()[:12]}")
    except MissingExtraError:
        return Line(name, "not installed")
    except (ValueError, ImportError) as error:
        return Line(name, "cannot be used", str(error))


def _minilm() -> str:
    from bcls._weights import MINILM_SHA256, minilm_folder

    minilm_folder()
    return MINILM_SHA256


def _wordllama() -> str:
    from bcls.labels.wordllama import WEIGHTS_SHA256, WordLlamaEncoder

    WordLlamaEncoder()
    return WEIGHTS_SHA256


def _backbone(name: str) -> Callable[[], str]:
    def check() -> str:
        from bcls.backbones import load_backbone

        return load_backbone(name).weights

    return check


def photo() -> Line:
    """The model ``photo``: its hash against the one that was written when the wheel was made."""
    with resources.as_file(resources.files("bcls")) as folder:
        path = Path(folder) / PHOTO
        if not path.is_file():
            return Line("photo", "not part of this install")
        found = sha256_of(path)
    recorded = dict(_recorded()).get(f"bcls/{PHOTO}")
    if recorded is None:
        return Line("photo", f"sha256 {found[:12]}, and no record of an install to compare it with")
    if found != recorded:
        remedy = "pip install --force-reinstall --no-deps bcls"
        return Line("photo", "damaged", f"expected sha256 {recorded}, got {found}; {remedy}")
    return Line("photo", f"as installed, sha256 {found[:12]}")


def _recorded() -> Iterator[tuple[str, str]]:
    """Name and sha256 of the files that the wheel brought."""
    try:
        found = metadata.distribution("bcls")
    except metadata.PackageNotFoundError:
        return
    for file in recorded(found):
        if file.mode == "sha256":
            padded = file.value + "=" * (-len(file.value) % 4)
            yield str(file.path), base64.urlsafe_b64decode(padded).hex()
