"""The engine ``ray`` leaves the same files as the local one."""

import json

import pytest

from bcls.data.dataset import open_dataset
from bcls.features.arrays import FeatureSettings
from bcls.features.extraction import extract
from tests.features.made import digests, draw, tiny

pytest.importorskip("transformers")


def test_ray_needs_an_absolute_folder(tmp_path, monkeypatch):
    draw(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    settings = FeatureSettings(tiny(tmp_path / "tiny"), "4", engine="ray")
    with pytest.raises(ValueError, match="`dataset`: expected an absolute folder with ray"):
        extract(open_dataset("data"), settings)


@pytest.mark.slow
@pytest.mark.parametrize("views", [0, 2])
def test_same_bytes_on_ray(tmp_path, monkeypatch, capsys, views):
    pytest.importorskip("ray.data")
    monkeypatch.setattr("bcls.features.extraction.BLOCK", 5)
    folder = draw(tmp_path / "data")
    backbone = tiny(tmp_path / "tiny")
    bad = folder / "images" / f"{open_dataset(folder).image_ids[3]}.png"
    bad.write_bytes(b"no picture")
    (folder / "quarantine.json").write_text(json.dumps({"images": {bad.stem: "damaged"}, "captions": {}}))
    local = extract(open_dataset(folder), FeatureSettings(backbone, "4", name="local", views=views))
    settings = FeatureSettings(backbone, "4", name="ray", engine="ray", workers=2, views=views)
    spread = extract(open_dataset(folder), settings)
    assert spread.zero_rows == (bad.stem,)
    assert digests(spread.folder) == digests(local.folder)
