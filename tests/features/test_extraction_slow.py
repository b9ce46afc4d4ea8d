"""Slow tests of extraction: killed processes and Ray."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from bcls.data.dataset import open_dataset
from bcls.features.extraction import FeatureSettings, extract
from tests.features.factories import digests, draw_dataset, tiny_backbone

pytest.importorskip("efficientnet_lite_pytorch")
CODE = (
    "import sys, bcls.features.extraction, bcls.cli.data\n"
    "bcls.features.extraction.BLOCK = 3\n"
    "sys.exit(bcls.cli.data.main(['features', sys.argv[1], '--name', sys.argv[2], '--views', sys.argv[3]]))\n"
)


@pytest.mark.slow
@pytest.mark.parametrize("views", ["0", "2"])
def test_extraction_killed_at_random_moments_resumes_with_the_same_bytes(tmp_path, monkeypatch, views):
    monkeypatch.setattr("bcls.features.extraction.BLOCK", 3)
    folder = draw_dataset(tmp_path / "data", images=24, splits=["train"] * 16 + ["test"] * 8)
    whole = extract(open_dataset(folder), FeatureSettings(name="whole", views=int(views))).folder
    parts = folder / "features" / "parts"
    chance = random.Random(0)
    killed = 0
    for target in (1, 3, 5, 7):
        child = subprocess.Popen(
            [sys.executable, "-c", CODE, str(folder), "parts", views], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        while child.poll() is None and blocks_done(parts) < target:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.1)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        killed += child.returncode == -signal.SIGKILL
    assert killed >= 2
    last = subprocess.run([sys.executable, "-c", CODE, str(folder), "parts", views], capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    assert digests(parts) == digests(whole)
    assert open_dataset(folder).features("parts").shape == (24, 36, 1280)


def blocks_done(folder):
    """Blocks that the two splits have between them."""
    done = 0
    for split, blocks in (("train", 6), ("test", 3)):
        try:
            done += (folder / f".{split}.blocks").read_bytes().count(b"\n") - 1
        except FileNotFoundError:
            done += blocks if (folder / f"{split}.npy").exists() else 0
    return done


@pytest.mark.slow
@pytest.mark.parametrize(("regions", "views"), [("4", 0), ("4", 2), ("crops-36", 0)])
def test_ray_writes_the_same_bytes(tmp_path, monkeypatch, capsys, regions, views):
    pytest.importorskip("ray.data")
    monkeypatch.setattr("bcls.features.extraction.BLOCK", 5)
    folder = draw_dataset(tmp_path / "data")
    backbone = tiny_backbone(tmp_path / "tiny")
    bad = folder / "images" / f"{open_dataset(folder).image_ids[3]}.png"
    bad.write_bytes(b"no image")
    (folder / "quarantine.json").write_text(json.dumps({"images": {bad.stem: "damaged"}, "captions": {}}))
    local = extract(open_dataset(folder), FeatureSettings(backbone, regions, name="local", views=views))
    settings = FeatureSettings(backbone, regions, name="ray", engine="ray", workers=2, views=views)
    spread = extract(open_dataset(folder), settings)
    assert spread.zero_rows == (bad.stem,)
    assert digests(spread.folder) == digests(local.folder)
