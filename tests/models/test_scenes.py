"""The model of the demo: equivalent inputs, cached captions, errors for wrong input."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from bcls.data.dataset import open_dataset
from bcls.models import load
from bcls.models.layers import Padded
from bcls.models.scenes import TEXT_WIDTH, ScenesConfig, ScenesModel, minilm_vectors
from tests.training.factories import make_data

CONFIG = ScenesConfig(channels=2, width=8)


@pytest.fixture
def model():
    torch.manual_seed(0)
    known = dict(zip(["a dog", "a cat"], torch.nn.functional.normalize(torch.randn(2, TEXT_WIDTH), dim=1), strict=True))
    return ScenesModel(CONFIG, lambda texts: torch.stack([known[text] for text in texts]))


def test_pixels_and_images_give_the_same_embeddings(model):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    images = [Image.fromarray(one) for one in pixels]
    array = pixels.transpose(0, 3, 1, 2)
    expected = model.encode_images(images)
    torch.testing.assert_close(expected.norm(dim=1), torch.ones(3))
    for same in (array, torch.from_numpy(array.copy()), torch.from_numpy(array.copy()).float(),
                 Padded(torch.from_numpy(array.copy()))):  # fmt: skip
        torch.testing.assert_close(model.encode_images(same), expected)
    assert model.encode_images([images[0].resize((200, 90))]).shape == (1, 8)


def test_strings_and_embeddings_give_the_same_vectors(model):
    vectors = model.embed(["a cat", "a dog"])
    torch.testing.assert_close(model.encode_texts(["a cat", "a dog"]), model.encode_texts(Padded(vectors)))


def test_captions_are_encoded_with_minilm():
    pytest.importorskip("sentence_transformers", reason='needs pip install "bcls[text]"')
    from bcls.labels.encoders import load_text_encoder

    texts, model = ["a red bus", "a dog", "a red bus"], ScenesModel(CONFIG)
    expected = load_text_encoder("minilm").encode(texts)
    np.testing.assert_allclose(minilm_vectors(texts), expected, atol=1e-6)
    torch.testing.assert_close(model.encode_texts(texts), model.encode_texts(Padded(torch.from_numpy(expected))))
    assert model.encode_texts([]).shape == (0, 8)


def test_saving_and_loading_keeps_scores(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    again = load(tmp_path / "model")
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    vectors = Padded(model.embed(["a dog", "a cat"]))
    assert torch.equal(again.similarity(pixels, vectors), model.similarity(pixels, vectors))


def test_it_loads_in_a_new_process(model, tmp_path):
    """A process that imports nothing but ``load_model``, as a script that uses a run of ``bcls demo``."""
    model.save_pretrained(tmp_path / "checkpoints" / "best")
    code = "import sys; from bcls import load_model; print(type(load_model(sys.argv[1])).__name__)"
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "ScenesModel\n"), run.stderr


def test_training_builds_it_by_name(tmp_path):
    """So that the ``config.yaml`` of a demo's run can be given to ``bcls train``."""
    from bcls.training.config import TrainConfig
    from bcls.training.setup import build_model

    made = open_dataset(make_data(tmp_path))
    assert isinstance(build_model(TrainConfig(model={"name": "scenes"}, features="made"), made), ScenesModel)
    assert build_model(TrainConfig(model={"name": "vsepp"}, features="made"), made).vocabulary is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.encode_texts("a dog"), "a list of strings"),
        (lambda model: model.encode_texts([1, 2]), "a list of strings"),
        (
            lambda model: model.encode_texts(torch.zeros(2, 5)),
            r"embeddings of MiniLM \(C, 384\), got torch.float32 \(2, 5\)",
        ),
        (lambda model: model.encode_images(torch.zeros(2, 3, 32, 32)), r"\(N, 3, 64, 64\), got \(2, 3, 32, 32\)"),
        (lambda _: ScenesConfig(side=16), "`side`"),
    ],
)
def test_wrong_input_is_an_error(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)
