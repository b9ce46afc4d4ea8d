"""Imports as a user makes them: read, write a dataset, open it."""

import shutil

from bcls.data.dataset import open_dataset
from bcls.data.importers import ImportSettings, run_import


def imported(kind, source, folder, **settings):
    """Import a source. What was written must open again, whatever was in the source."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    run_import(kind, source, ImportSettings(str(out), **settings))
    try:
        return open_dataset(out)
    except ValueError as error:
        raise AssertionError("an import wrote what cannot be opened") from error


def put(folder, name, content):
    """Write a file whole, in a folder of its own."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
