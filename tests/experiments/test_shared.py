from dataclasses import asdict

import numpy as np
import torch

from bcls.experiments.metrics import draw_scenes
from bcls.experiments.run import SharedData, cached_file, encoder_settings
from bcls.models import build
from bcls.models.config import DualConfig
from bcls.models.padded import Padded
from bcls.training.config import TrainConfig
from tests.experiments.made import BASE, data


def test_rows_are_made_once(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return Padded(torch.ones(3, 2, 4), torch.tensor([1, 2, 2]))

    for _ in range(2):
        found = cached_file(tmp_path / "shared" / "a.safetensors", compute)
    assert len(calls) == 1
    assert found.values.shape == (3, 2, 4)
    assert found.lengths.tolist() == [1, 2, 2]


def test_a_frozen_encoder_reads_captions_once_for_all_models(tmp_path):
    """Models with other heads share what their common encoder made; other captions are read anew."""
    shared = SharedData(data(tmp_path / "data"), tmp_path / "shared")
    models = [
        build({"name": "dual", "image": "features", "features": 6, "text": "minilm", "width": width})
        for width in (4, 8)
    ]
    texts = ["a dog runs", "two men eat"]
    plain = models[0].text_vectors_of(texts).values
    first, second = (shared.lend(model).text_vectors_of(texts) for model in models)
    assert first is second
    assert torch.equal(first.values, plain)
    other = models[1].text_vectors_of(texts[::-1])
    torch.testing.assert_close(other.values[0], first.values[1], rtol=1e-4, atol=1e-5)  # another place in the batch
    assert len(list((tmp_path / "shared").glob("*.safetensors"))) == 2


def test_features_are_shared_whatever_the_other_side_is_made_of(tmp_path):
    """And whatever a GRU would be, where there is none; another way to pool words makes other features."""
    shared = SharedData(data(tmp_path / "data"), tmp_path / "shared")
    plain = {"name": "dual", "image": "features", "features": 6, "text": "minilm", "width": 4}
    changes = ({}, {"states": 8, "bidirectional": False, "dropout_words": 0.5}, {"text_pooling": "cls"})
    one, same, other = (shared.lend(build({**plain, **change})).text_vectors_of(["a dog"]) for change in changes)
    assert one is same
    assert other is not one
    images = [
        encoder_settings(asdict(DualConfig(**change)), "image")
        for change in ({}, {"text": "gru", "states": 8}, {"tune_text": True}, {"image_view": "mirrored"})
    ]
    assert images[0] == images[1] == images[2] != images[3]


def test_label_vectors_have_length_one(tmp_path):
    shared = SharedData(data(tmp_path / "data"), tmp_path / "shared")
    config = TrainConfig(**BASE)
    split = shared.split("test", config)
    captions = shared.captions(split, "wordllama")
    assert captions is shared.captions(split, "wordllama")
    assert captions.vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(captions.vectors, axis=1), 1, atol=1e-6)


def test_a_part_keeps_the_order_of_the_dataset(tmp_path):
    dataset = SharedData(data(tmp_path / "data"), tmp_path).dataset
    part = dataset.of_images(["i7", "i3"])
    assert part.image_ids == ("i3", "i7")
    assert {caption.image_id for caption in part.captions} == {"i3", "i7"}
    assert part.features("made").shape == (2, 6)


def test_scenes_are_a_dataset_that_is_drawn_once(tmp_path):
    draw_scenes(tmp_path / "scenes", 20)
    before = (tmp_path / "scenes" / "captions.jsonl").stat().st_mtime_ns
    draw_scenes(tmp_path / "scenes", 50)
    assert (tmp_path / "scenes" / "captions.jsonl").stat().st_mtime_ns == before
    dataset = SharedData(tmp_path / "scenes", tmp_path).dataset
    assert {split: count for split, (count, _) in dataset.splits.items()} == {"train": 14, "val": 3, "test": 3}
    assert dataset.read_image(dataset.image_ids[0]).size == (96, 96)
