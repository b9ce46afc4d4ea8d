"""A trained model as the folder that the Hub takes."""

from pathlib import Path

from bcls.models import load


def export_folder(model: str | Path, out: str | Path) -> None:
    """Write a model's config, weights, vocabulary and card into a folder, replacing it whole.

    Args:
        model: A run folder, of which the best checkpoint is taken, or whatever else :func:`bcls.models.load` takes.
        out: The folder.

    Raises:
        ValueError: There is no such model, or something else than a model is at ``out``.
    """
    load(model).save_pretrained(out)
