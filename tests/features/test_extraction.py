"""Extraction of features: values, files, resume, refusals."""

import json
from importlib import metadata

import numpy as np
import pytest
import torch

from bcls._core.locks import lock_folder
from bcls.data.check import check_dataset
from bcls.data.dataset import open_dataset
from bcls.features.backbones import load_backbone
from bcls.features.extraction import FeatureSettings, _device, extract
from bcls.features.regions import CROP_BOXES
from bcls.models import SafConfig, build
from tests.features.factories import digests, draw_dataset, interrupted_extraction, tiny_backbone
from tests.reference.features import crop_features
from tests.reference.features import features as reference

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize(
    ("view", "regions", "rows"),
    [("whole", "4", 2), ("whole", "global", None), ("ten-crop", "2x2", 2), ("six-crop", "global", None)],
)
def test_rows_equal_the_reference(folder, backbone, view, regions, rows):
    done = extract(open_dataset(folder), FeatureSettings(backbone, regions, view, name="mine"))
    shape = (16,) if rows is None else (4, 16)
    assert done.shapes == {"train": (16, *shape), "test": (4, *shape)}
    assert (done.already, done.unreadable, done.zero_rows) == ((), {}, ())
    dataset = open_dataset(folder)
    found = dataset.features("mine")
    assert found.shape == (20, *shape)
    assert found.arrays[0].dtype == np.float16
    assert isinstance(found.arrays[0], np.memmap)
    network = load_backbone(backbone)
    for number in (0, 4, 5, 15, 16, 19):
        expected = reference(network, dataset.read_image(dataset.image_ids[number]), view, rows)
        torch.testing.assert_close(torch.tensor(found[number]).float(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(("view", "ending"), [("whole", "crops-36"), ("mirrored", "crops-36-mirrored")])
def test_crops_equal_the_reference_and_resume(folder, backbone, monkeypatch, view, ending):
    settings = FeatureSettings(backbone, "crops-36", view)
    interrupted_extraction(folder, settings, monkeypatch)
    done = extract(open_dataset(folder), settings)
    whole = extract(open_dataset(folder), FeatureSettings(backbone, "crops-36", view, name="whole", workers=3))
    assert done.name == f"{backbone.rpartition('/')[2]}-{ending}"
    assert done.shapes == {"train": (16, 36, 16), "test": (4, 36, 16)}
    assert digests(done.folder) == digests(whole.folder)
    record = json.loads((done.folder / "manifest.json").read_text())["settings"]
    assert (record["regions"], record["view"]) == ("crops-36", view)
    dataset, network = open_dataset(folder), load_backbone(backbone)
    for number in (0, 5, 19):
        image = dataset.read_image(dataset.image_ids[number])
        expected = crop_features(network, image, CROP_BOXES, view == "mirrored")
        found = torch.tensor(dataset.features(done.name)[number]).float()
        torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)  # Pillow rounds to whole numbers
    model = build(SafConfig(words=5, features=16, width=8, similarity_width=4))
    texts = torch.tensor([[1, 2]]), torch.tensor([2])
    assert model.similarity(dataset.features(done.name).take([0, 1]), texts).shape == (2, 1)


def test_crops_of_joined_backbones(folder, backbone):
    settings = FeatureSettings(f"{backbone}+{backbone}", "crops-36", name="both", split="test")
    assert extract(open_dataset(folder), settings).shapes == {"test": (4, 36, 32)}
    rows = open_dataset(folder).split("test").features("both")[0]
    np.testing.assert_array_equal(rows[:, :16], rows[:, 16:])


def test_manifest_records_settings_and_software(folder, backbone):
    before = json.loads((folder / "manifest.json").read_text())
    done = extract(open_dataset(folder), FeatureSettings(backbone, "global", "centre"))
    assert done.name == f"{backbone.rpartition('/')[2]}-global-centre"
    record = json.loads((done.folder / "manifest.json").read_text())
    assert record["settings"]["weights"] == load_backbone(backbone).weights
    assert record["settings"]["dtype"] == "float16"
    assert record["splits"]["test"]["rows"] == 4
    assert record["splits"]["test"]["software"]["torch"] == metadata.version("torch")
    assert sorted(path.name for path in done.folder.iterdir()) == [".lock", "manifest.json", "test.npy", "train.npy"]
    after = json.loads((folder / "manifest.json").read_text())
    assert after.pop("features") == {
        done.name: {split: {"path": f"features/{done.name}/{split}.npy", "every": 1} for split in ("train", "test")}
    }
    assert after == before


def test_finished_splits_are_reported_and_kept(folder, backbone):
    settings = FeatureSettings(backbone, "4", name="mine")
    first = extract(open_dataset(folder), settings)
    kept = digests(first.folder)
    again = extract(open_dataset(folder), settings)
    assert again.already == ("train", "test")
    assert again.shapes == first.shapes
    assert digests(again.folder) == kept


def test_single_splits_give_the_same_files(folder, backbone):
    whole = extract(open_dataset(folder), FeatureSettings(backbone, "4", name="whole")).folder
    for split in ("test", "train"):
        done = extract(open_dataset(folder), FeatureSettings(backbone, "4", name="parts", split=split))
        assert done.already == ()
    assert digests(done.folder) == digests(whole)


@pytest.mark.parametrize(
    "change", [{"regions": "16"}, {"regions": "crops-36"}, {"view": "centre"}, {"precision": "bfloat16"}]
)
def test_other_settings_for_finished_features_raise(folder, backbone, change):
    settings = {"backbone": backbone, "regions": "4", "name": "mine"}
    extract(open_dataset(folder), FeatureSettings(**settings))
    with pytest.raises(ValueError, match=rf"`{next(iter(change))}`: expected .* as in the finished features 'mine'"):
        extract(open_dataset(folder), FeatureSettings(**{**settings, **change}))


def test_resume_gives_the_same_bytes(folder, backbone, monkeypatch):
    whole = extract(open_dataset(folder), FeatureSettings(backbone, "4", name="whole")).folder
    settings = FeatureSettings(backbone, "4", name="parts")
    interrupted_extraction(folder, settings, monkeypatch)
    parts = folder / "features" / "parts"
    assert not (parts / "manifest.json").exists()
    assert "parts" not in open_dataset(folder).feature_names
    with (parts / ".train.blocks").open("ab") as file:
        file.write(b'{"block": 2, "ze')  # a line that was cut off
    computed = []
    from bcls.features.worker import FeatureWorker

    call = FeatureWorker.__call__
    monkeypatch.setattr(FeatureWorker, "__call__", lambda self, ids: computed.append(len(ids)) or call(self, ids))
    extract(open_dataset(folder), settings)
    assert computed == [5, 1, 4]
    for split in ("train", "test"):
        assert (parts / f"{split}.npy").read_bytes() == (whole / f"{split}.npy").read_bytes()
    assert (parts / "manifest.json").read_bytes() == (whole / "manifest.json").read_bytes()


@pytest.mark.parametrize("change", [{"regions": "16"}, {"view": "ten-crop"}, {"precision": "float16"}])
def test_other_settings_for_unfinished_features_raise(folder, backbone, monkeypatch, change):
    settings = {"backbone": backbone, "regions": "4", "name": "mine"}
    interrupted_extraction(folder, FeatureSettings(**settings), monkeypatch)
    with pytest.raises(ValueError, match=rf"`{next(iter(change))}`: expected .* as in the unfinished computation"):
        extract(open_dataset(folder), FeatureSettings(**{**settings, **change}))


def test_kill_between_renaming_and_recording_is_resumed(folder, backbone, monkeypatch):
    settings = FeatureSettings(backbone, "4", name="mine", split="test")
    with monkeypatch.context() as patch:
        patch.setattr(
            "bcls.features.extraction._SplitWork._record", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            extract(open_dataset(folder), settings)
    assert (folder / "features" / "mine" / "test.npy").exists()
    assert extract(open_dataset(folder), settings).already == ()
    assert open_dataset(folder).split("test").features("mine").shape == (4, 4, 16)


def test_journal_that_a_killed_process_left_behind_is_removed(folder, backbone, monkeypatch):
    def killed(path, missing_ok=False):
        if path.name == ".test.blocks" and path.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            extract(open_dataset(folder), FeatureSettings(backbone, "4", name="mine", split="test"))
    journal = folder / "features" / "mine" / ".test.blocks"
    assert journal.exists()
    assert extract(open_dataset(folder), FeatureSettings(backbone, "4", name="mine")).already == ("test",)
    assert not journal.exists()


def test_split_with_unreadable_images_is_unfinished_until_they_are_quarantined(folder, backbone, tmp_path):
    dataset = open_dataset(folder)
    bad = dataset.image_ids[6]
    image_file = folder / "images" / f"{bad}.png"
    image_file.write_bytes(image_file.read_bytes()[:200])
    settings = FeatureSettings(backbone, "4", name="mine")
    done = extract(dataset, settings)
    assert list(done.unreadable) == [bad]
    assert "damaged" in done.unreadable[bad]
    assert open_dataset(folder).manifest.features["mine"].keys() == {"test"}
    assert not (done.folder / "train.npy").exists()
    check_dataset(folder)
    done = extract(open_dataset(folder), settings)
    assert (done.unreadable, done.zero_rows, done.already) == ({}, (bad,), ("test",))
    rows = open_dataset(folder).features("mine")
    assert not rows[6].any()
    assert all(rows[number].any() for number in range(20) if number != 6)
    record = json.loads((done.folder / "manifest.json").read_text())
    assert record["splits"]["train"]["zero_rows"] == [bad]
    assert extract(open_dataset(folder), settings).zero_rows == (bad,)


def test_check_compares_features_with_their_checksums(folder, backbone):
    done = extract(open_dataset(folder), FeatureSettings(backbone, "4", name="mine"))
    assert check_dataset(folder).is_clean
    rows = np.load(done.folder / "test.npy", mmap_mode="r+")
    rows[0, 0, 0] += 1
    rows.flush()
    report = check_dataset(folder)
    assert [(one.kind, one.subject) for one in report.findings] == [("changed-file", "features/mine/test.npy")]
    assert report.quarantine.images == {}
    (done.folder / "manifest.json").write_text('{"splits": {"test": 3}}')
    (finding,) = check_dataset(folder).findings
    assert (finding.kind, finding.subject) == ("changed-file", "features/mine/manifest.json")
    assert "delete" in finding.detail


def test_readable_images_in_quarantine_have_features(folder, backbone):
    image = open_dataset(folder).image_ids[0]
    (folder / "quarantine.json").write_text(json.dumps({"images": {image: "a leak"}, "captions": {}}))
    extract(open_dataset(folder), FeatureSettings(backbone, "4", name="mine"))
    assert open_dataset(folder).features("mine")[0].any()


def test_missing_images_raise_one_error(folder, backbone):
    for image_file in (folder / "images").iterdir():
        image_file.rename(folder / image_file.name)
    settings = FeatureSettings(backbone, "4")
    with pytest.raises(ValueError, match="`dataset`: expected images that can be read, got none of 5"):
        extract(open_dataset(folder), settings)
    # Images in quarantine have no features anyway, so they do not show that the folder is the right one.
    images = dict.fromkeys(open_dataset(folder).image_ids[::2], "damaged")
    (folder / "quarantine.json").write_text(json.dumps({"images": images, "captions": {}}))
    with pytest.raises(ValueError, match="`dataset`: expected images that can be read, got none of 5"):
        extract(open_dataset(folder), settings)


def test_features_that_are_not_finite_raise(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    path = tiny_backbone(tmp_path / "wild")
    state = load_file(f"{path}/model.safetensors")
    state["layernorm.weight"] *= 1e6
    save_file(state, f"{path}/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="`precision`: expected features that are finite in float16"):
        extract(open_dataset(folder), FeatureSettings(path, "4"))


def test_incomplete_splits_raise(folder, backbone):
    image = open_dataset(folder).image_ids[0]
    (folder / "quarantine.json").write_text(json.dumps({"images": {image: "a leak"}, "captions": {}}))
    with pytest.raises(ValueError, match="`dataset`: expected all 16 images of split 'train', got 15"):
        extract(open_dataset(folder).without_quarantined(), FeatureSettings(backbone, "4"))


def test_changed_images_raise(folder, backbone):
    extract(open_dataset(folder), FeatureSettings(backbone, "4", name="mine"))
    lines = (folder / "captions.jsonl").read_text().splitlines()
    (folder / "captions.jsonl").write_text("\n".join([*lines[5:80], *lines[:5], *lines[80:]]) + "\n")
    with pytest.raises(ValueError, match="expected features of the current images of split 'train'"):
        extract(open_dataset(folder), FeatureSettings(backbone, "4", name="mine"))


def test_names_of_imported_features_raise(folder, backbone):
    np.save(folder / "other.npy", np.ones((16, 3), np.float32))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["features"] = {"butd": {"train": {"path": "other.npy"}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="`name`: expected an unused name"):
        extract(open_dataset(folder), FeatureSettings(backbone, "4", name="butd"))


@pytest.mark.parametrize(
    ("backbone", "name"),
    [
        ("efficientnet-lite0", "efficientnet-lite0-36"),
        ("facebook/dinov2-base", "dinov2-base-36"),
        ("efficientnet-lite0 + facebook/dinov2-base", "efficientnet-lite0+dinov2-base-36"),
        ("models/one+models/two", "one+two-36"),
    ],
)
def test_default_name_has_all_backbones(backbone, name):
    assert FeatureSettings(backbone).default_name == name


def test_second_extraction_at_a_time_raises(folder, backbone):
    with (
        lock_folder(folder / "features" / "mine"),
        pytest.raises(ValueError, match="features that no other process is writing"),
    ):
        extract(open_dataset(folder), FeatureSettings(backbone, "4", name="mine"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"engine": "spark"}, "engine"),
        ({"precision": "int8"}, "precision"),
        ({"view": "all"}, "view"),
        ({"regions": "5"}, "regions"),
        ({"regions": "36"}, "regions"),  # the grid is 4 x 4
        ({"workers": 0}, "workers"),
        ({"split": "dev"}, "split"),
        ({"device": "tpu"}, "device"),
        ({"device": "cuda:abc"}, "device"),
        ({"device": "cuda:99"}, "device"),
        ({"device": "cpu:1"}, "device"),
        ({"name": "../up"}, "name"),
        ({"backbone": "efficientnet"}, "backbone"),
    ],
)
def test_invalid_settings_raise_and_write_nothing(folder, backbone, change, named):
    with pytest.raises(ValueError, match=f"^`{named}`: expected"):
        extract(open_dataset(folder), FeatureSettings(**{"backbone": backbone, "regions": "4", **change}))
    assert not (folder / "features").exists()


def test_result_does_not_depend_on_the_number_of_threads(folder, backbone):
    made = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            done = extract(open_dataset(folder), FeatureSettings(backbone, "4", name=f"with{threads}"))
            assert torch.get_num_threads() == threads
            made.append(digests(done.folder))
    finally:
        torch.set_num_threads(before)
    assert made[0] == made[1]


def test_unavailable_devices_raise(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert [_device(name) for name in ("auto", "cuda", "cuda:0", "cpu")] == ["cuda", "cuda", "cuda:0", "cpu"]
    for name in ("cuda:abc", "cuda:99", "cuda:", "mps"):
        with pytest.raises(ValueError, match="`device`"):
            _device(name)


def test_ray_needs_an_absolute_folder(tmp_path, monkeypatch):
    draw_dataset(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    settings = FeatureSettings(tiny_backbone(tmp_path / "tiny"), "4", engine="ray")
    with pytest.raises(ValueError, match="`dataset`: expected an absolute folder with the engine 'ray'"):
        extract(open_dataset("data"), settings)
