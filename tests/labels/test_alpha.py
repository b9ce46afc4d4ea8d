"""The paper's statistic for alpha."""

import json
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bcls.cli import main as cli
from bcls.data.synthetic import make_scenes
from bcls.labels.alpha import caption_spread, suggest_alpha
from bcls.labels.encoders import load_text_encoder


@given(owners=st.lists(st.integers(0, 4), min_size=2, max_size=14), seed=st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_spread_equals_a_plain_loop(owners, seed):
    vectors = np.random.default_rng(seed).normal(size=(len(owners), 5)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    by_image = {}
    for k in range(len(owners)):
        for other in range(k + 1, len(owners)):
            if owners[k] == owners[other]:
                by_image.setdefault(owners[k], []).append(
                    float(vectors[k].astype(float) @ vectors[other].astype(float))
                )
    if not by_image:
        with pytest.raises(ValueError, match="`dataset`: expected images with two captions or more"):
            caption_spread(vectors, np.array(owners))
        return
    spread = caption_spread(vectors, np.array(owners))
    pooled = [cosine for cosines in by_image.values() for cosine in cosines]
    assert spread.alpha == pytest.approx(statistics.pstdev(pooled), abs=2e-6)
    assert spread.mean == pytest.approx(statistics.fmean(pooled))
    assert spread.per_image == pytest.approx(statistics.fmean(statistics.pstdev(c) for c in by_image.values()))
    assert (spread.images, spread.pairs) == (len(by_image), len(pooled))
    assert spread.quantiles == tuple(sorted(spread.quantiles))
    assert sum(spread.histogram) == spread.pairs
    assert spread.histogram[min(39, int((max(pooled) + 1) / 0.05 + 1e-9))] > 0


def test_any_object_with_captions_is_accepted():
    scenes = make_scenes(6)
    vectors = load_text_encoder("wordllama").encode(scenes.texts)
    assert suggest_alpha(scenes, "wordllama") == caption_spread(vectors, scenes.image_of_caption)


def test_command(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    lines = ["image,caption,split"]
    for image in range(3):
        Image.new("RGB", (8, 8), (image * 80, 0, 0)).save(tmp_path / "photos" / f"{image}.png")
        lines += [f"{image}.png,{text},train" for text in (f"a dog number {image}", "a puppy runs")]
    (tmp_path / "captions.csv").write_text("\n".join(lines) + "\n")
    out = str(tmp_path / "data")
    arguments = ["data", "import", "folder", str(tmp_path / "photos"), "--captions", str(tmp_path / "captions.csv")]
    assert cli.main([*arguments, "--out", out]) == 0
    capsys.readouterr()
    assert cli.main(["labels", "alpha", out, "--encoder", "wordllama", "--json"]) == 0
    spread = json.loads(capsys.readouterr().out)
    assert (spread["images"], spread["pairs"]) == (3, 3)
    assert cli.main(["labels", "alpha", out, "--encoder", "wordllama"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"alpha {spread['alpha']:.3f}: ")
    assert "####" in output
    drawing = tmp_path / "alpha.png"
    assert cli.main(["labels", "alpha", out, "--encoder", "wordllama", "--plot", str(drawing)]) == 0
    assert Image.open(drawing).format == "PNG"
    capsys.readouterr()
    for flag, value, expected in (
        ("--plot", str(tmp_path / "no" / "alpha.png"), "a file in an existing folder"),
        ("--plot", str(tmp_path), "a file name"),
        ("--plot", "alpha.xyz", "a file that ends in .png, .svg or .pdf"),
        ("--encoder", "wordlama", "'minilm', 'wordllama', "),
        ("--split", "tran", "one of 'train'"),
    ):
        assert cli.main(["labels", "alpha", out, "--encoder", "wordllama", flag, value]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"bcls labels: `{flag}`: expected {expected}")  # before the captions are encoded
        assert error.count("\n") == 1
    assert cli.main(["labels", "alpha"]) == 2
    assert "arguments are required: DIR; see `bcls labels alpha --help`" in capsys.readouterr().err
