"""all-MiniLM-L6-v2 out of an installed package: no download, and the weights checked against the published ones."""

from bcls._weights import minilm_folder
from bcls.labels.sentence import SentenceEncoder


def load_minilm(precision: str = "float32") -> SentenceEncoder:
    """Load the packaged all-MiniLM-L6-v2, 384 dimensions.

    Args:
        precision: ``"float32"`` or ``"bfloat16"``.

    Raises:
        ValueError: If the weights are missing or not the published ones.
        MissingExtraError: If the package is not installed.

    Example:
        >>> load_minilm().dimension
        384
    """
    return SentenceEncoder("minilm", minilm_folder(), precision)
