"""Import of a source: read it, write a dataset, open the dataset."""

import shutil

from bcls.data.dataset import open_dataset
from bcls.data.importers import ImportSettings, run_import


def imported(kind, source, folder, **settings):
    """Import a source. A dataset that was written must open."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    run_import(kind, source, ImportSettings(str(out), **settings))
    try:
        return open_dataset(out)
    except ValueError as error:
        raise AssertionError("an import wrote what cannot be opened") from error


def put(folder, name, content):
    """Write a file into a folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
