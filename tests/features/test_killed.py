"""An extraction that is killed at any moment goes on, and ends with the same bytes."""

import random
import signal
import subprocess
import sys
import time

import pytest

from bcls.features.arrays import FeatureSettings
from bcls.features.extraction import extract
from tests.features.made import digests, draw, opened

pytest.importorskip("efficientnet_lite_pytorch")
CODE = (
    "import sys, bcls.features.extraction, bcls.cli.data\n"
    "bcls.features.extraction.BLOCK = 3\n"
    "sys.exit(bcls.cli.data.main([sys.argv[1], '--name', sys.argv[2], '--views', sys.argv[3]]))\n"
)


@pytest.mark.slow
@pytest.mark.parametrize("views", ["0", "2"])
def test_killed_at_random_moments(tmp_path, monkeypatch, views):
    monkeypatch.setattr("bcls.features.extraction.BLOCK", 3)
    folder = draw(tmp_path / "data", images=24, splits=["train"] * 16 + ["test"] * 8)
    whole = extract(opened(folder), FeatureSettings(name="whole", views=int(views))).folder
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
    assert opened(folder).features("parts").shape == (24, 36, 1280)


def blocks_done(folder):
    """Blocks that the two splits have between them."""
    done = 0
    for split, blocks in (("train", 6), ("test", 3)):
        try:
            done += (folder / f".{split}.blocks").read_bytes().count(b"\n") - 1
        except FileNotFoundError:
            done += blocks if (folder / f"{split}.npy").exists() else 0
    return done
