"""One run of a sweep: training, resuming, metrics, and shared data."""

import shutil
import signal
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from bcls.experiments import SweepSettings, read_results, run_sweep
from bcls.experiments import run as one_run
from bcls.experiments.metrics import draw_scenes
from bcls.experiments.plan import plan_runs
from bcls.experiments.results import run_folder, write_result
from bcls.experiments.run import SharedData, cached_file, encoder_settings
from bcls.experiments.sweep import _members_are_finished
from bcls.experiments.sweep_file import read_sweep
from bcls.models import build
from bcls.models.config import DualConfig
from bcls.models.layers import Padded
from bcls.training import train as loop
from bcls.training.config import TrainConfig
from tests.experiments.factories import BASE, data, write
from tests.stops import stops_at


@pytest.fixture
def settings(tmp_path):
    data(tmp_path / "data")
    return SweepSettings(data=str(tmp_path / "data"), out=str(tmp_path / "out"), device="cpu")


def test_the_last_checkpoint_stays_until_the_result_is_written(tmp_path, settings, monkeypatch):
    file = write(tmp_path / "a.yaml", settings={"epochs": 1})

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(one_run, "write_result", killed)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(file, settings)
    (last,) = (tmp_path / "out").glob("runs/*/checkpoints/last")
    journal = (last.parents[1] / "metrics.jsonl").read_bytes()
    assert run_sweep(file, settings).finished == 1
    assert not last.exists()
    assert (last.parents[1] / "metrics.jsonl").read_bytes() == journal  # nothing was trained again


def test_a_run_without_its_weights_is_trained_again_to_be_tested(tmp_path, settings):
    file = write(tmp_path / "a.yaml", settings={"epochs": 1})
    run_sweep(file, settings)
    (before,) = read_results(tmp_path / "out")[1]
    shutil.rmtree(tmp_path / "out" / "runs" / before["key"] / "checkpoints")
    run_sweep(file, settings)  # there is nothing to do
    assert not list((tmp_path / "out").glob("runs/*/checkpoints"))
    run_sweep(file, replace(settings, final=True))
    (after,) = read_results(tmp_path / "out")[1]
    assert after["validation"] == before["validation"]
    assert "rsum" in after["test"]


def test_a_stopped_second_training_resumes_and_is_not_tested_before_its_end(tmp_path, settings, monkeypatch):
    file = write(tmp_path / "a.yaml", settings={"epochs": 3, "lr": 1e-2})
    run_sweep(file, replace(settings, out=str(tmp_path / "whole"), final=True))
    (whole,) = read_results(tmp_path / "whole")[1]
    run_sweep(file, settings)
    (before,) = read_results(tmp_path / "out")[1]
    checkpoints = tmp_path / "out" / "runs" / before["key"] / "checkpoints"
    shutil.rmtree(checkpoints)
    final = replace(settings, final=True)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", stops_at(2, loop.validate))
        patch.setattr(one_run, "SAVE_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(file, final)
    assert (checkpoints / "best").is_dir()
    (stopped,) = read_results(tmp_path / "out")[1]
    assert stopped["validation"] == before["validation"]
    run_sweep(file, final)
    (after,) = read_results(tmp_path / "out")[1]
    assert after["validation"] == before["validation"]
    assert after["test"] == whole["test"]
    assert "again" not in after


def test_a_stopped_second_training_of_a_member_resumes_before_the_ensemble(tmp_path, settings, monkeypatch):
    rows = {"a": {}, "b": {"loss": {"name": "triplet-hn"}}, "both": {"ensemble": ["a", "b"]}}
    file = write(tmp_path / "a.yaml", runs=rows, settings={"epochs": 3, "lr": 1e-2})
    run_sweep(file, replace(settings, only=["a", "b"], final=True))
    before, other = read_results(tmp_path / "out")[1]
    checkpoints = tmp_path / "out" / "runs" / before["key"] / "checkpoints"
    shutil.rmtree(checkpoints)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", stops_at(2, loop.validate))
        patch.setattr(one_run, "SAVE_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(file, settings)
    assert (checkpoints / "best").is_dir()
    assert run_sweep(file, settings).finished == 3
    after, unchanged, both = read_results(tmp_path / "out")[1]
    assert "again" not in after
    assert after["validation"] == before["validation"]
    assert after["test"] == before["test"]  # although this sweep is not a final one
    assert unchanged == other
    assert "rsum" in both["validation"]
    assert "test" not in both


def test_an_ensemble_waits_for_a_member_that_is_trained_again(tmp_path):
    rows = {"a": {}, "b": {"loss": {"name": "triplet-hn"}}, "both": {"ensemble": ["a", "b"]}}
    planned = plan_runs(read_sweep(write(tmp_path / "a.yaml", runs=rows)))
    first, second, both = planned
    for run, result in ((first, {}), (second, {"again": True})):
        (run_folder(tmp_path, run) / "checkpoints" / "best").mkdir(parents=True)
        write_result(tmp_path, run, {"validation": {"rsum": 1.0}, **result})
    assert not _members_are_finished(tmp_path, both)
    write_result(tmp_path, second, {"validation": {"rsum": 1.0}})
    assert _members_are_finished(tmp_path, both)


def test_an_interrupt_during_the_last_validation_stops_the_sweep(tmp_path, monkeypatch):
    data(tmp_path / "data")
    file = write(tmp_path / "a.yaml", settings={"epochs": 1}, seeds=2)
    settings = SweepSettings(data=str(tmp_path / "data"), out=str(tmp_path / "out"), device="cpu")
    look = loop.validate

    def asked(*arguments, **more):
        signal.raise_signal(signal.SIGINT)
        return look(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", asked)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(file, settings)
    assert len(list((tmp_path / "out").glob("runs/*/metrics.jsonl"))) == 1  # the second run was not begun
    assert run_sweep(file, settings).finished == 2


def test_features_are_computed_once(tmp_path):
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
    assert torch.equal(first.values, plain)
    assert torch.equal(second.values, plain)
    other = models[1].text_vectors_of(texts[::-1])
    torch.testing.assert_close(other.values[0], first.values[1], rtol=1e-4, atol=1e-5)  # another place in the batch
    assert len(list((tmp_path / "shared").glob("*.safetensors"))) == 2


def test_cached_features_do_not_depend_on_the_other_encoder(tmp_path):
    """And whatever a GRU would be, where there is none; another way to pool words makes other features."""
    shared = SharedData(data(tmp_path / "data"), tmp_path / "shared")
    plain = {"name": "dual", "image": "features", "features": 6, "text": "minilm", "width": 4}
    changes = ({}, {"states": 8, "bidirectional": False, "dropout_words": 0.5}, {"text_pooling": "cls"})
    one, same, other = (shared.lend(build({**plain, **change})).text_vectors_of(["a dog"]) for change in changes)
    assert torch.equal(one.values, same.values)
    assert not torch.equal(other.values, one.values)
    assert len(list((tmp_path / "shared").glob("*.safetensors"))) == 2
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
    assert captions.vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(captions.vectors, axis=1), 1, atol=1e-6)


def test_of_images_keeps_the_order_of_the_dataset(tmp_path):
    dataset = SharedData(data(tmp_path / "data"), tmp_path).dataset
    part = dataset.of_images(["i7", "i3"])
    assert part.image_ids == ("i3", "i7")
    assert {caption.image_id for caption in part.captions} == {"i3", "i7"}
    assert part.features("made").shape == (2, 6)


def test_scenes_are_generated_once(tmp_path):
    draw_scenes(tmp_path / "scenes", 20)
    before = (tmp_path / "scenes" / "captions.jsonl").stat().st_mtime_ns
    draw_scenes(tmp_path / "scenes", 50)
    assert (tmp_path / "scenes" / "captions.jsonl").stat().st_mtime_ns == before
    dataset = SharedData(tmp_path / "scenes", tmp_path).dataset
    assert {split: count for split, (count, _) in dataset.splits.items()} == {"train": 14, "val": 3, "test": 3}
    assert dataset.read_image(dataset.image_ids[0]).size == (96, 96)
