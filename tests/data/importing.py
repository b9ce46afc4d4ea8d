"""What the tests of the importers share."""

import pytest

from bcls.data.dataset import open_dataset
from bcls.data.importers import ImportSettings, run_import


def bring(kind, source, out, **settings):
    """Import and open; the dataset and the notes."""
    imported = run_import(kind, source, ImportSettings(str(out), **settings))
    return open_dataset(out), imported.notes


def refused(kind, source, out, **settings):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        run_import(kind, source, ImportSettings(str(out), **settings))
    assert "\n" not in str(caught.value)
    assert not (out / "manifest.json").exists()
    return str(caught.value)
