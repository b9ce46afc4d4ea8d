"""Random views in the features of a made dataset."""

import json

import numpy as np


def add_views(folder, views, *, counts=False, marked=True):
    """Give every image of a dataset of :func:`tests.training.made.make_data` random views behind its own row.

    Args:
        folder: The dataset.
        views: Rows of an image, its own included.
        counts: Regions are padded, differently in each row.
        marked: Whether the manifest says that the rows are views; else they are passed over.
    """
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    draw = np.random.default_rng(7)
    for split, file in manifest["features"]["made"].items():
        whole = np.load(folder / file["path"])
        rows = draw.standard_normal((len(whole), views, *whole.shape[1:])).astype(np.float32)
        rows[:, 0] = whole
        file |= {"path": f"{split}-views.npy", "every": views}
        np.save(folder / file["path"], rows.reshape(-1, *whole.shape[1:]))
        if marked:
            file["views"] = views
        if counts:
            file["counts"] = f"{split}-counts.npy"
            np.save(folder / file["counts"], draw.integers(1, whole.shape[1] + 1, len(whole) * views))
    path.write_text(json.dumps(manifest))
    return folder
