"""Location of the Flickr8k files."""

import os
from pathlib import Path


def data():
    """The folder with ``dataset_flickr8k.json.gz`` and ``images_224.zip``."""
    if "BCLS_DATA" not in os.environ:
        raise SystemExit("set BCLS_DATA to the folder that has flickr8k/images_224.zip")
    return Path(os.environ["BCLS_DATA"]) / "flickr8k"
