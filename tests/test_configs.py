"""Every preset is one that `bcls train` takes: settings, loss and model are known, and each line says what it is."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from bcls.cli.arguments import parse
from bcls.losses import BCLSLoss
from bcls.models.config import model_config
from bcls.training.config import TrainConfig, check_config
from bcls.training.optimization import make_loss

ROOT = Path(__file__).parents[1] / "configs"
FILES = sorted(path for path in ROOT.rglob("*.yaml") if path.parent.name not in {"paper", "sweeps"})
PAPER = [path for path in FILES if path.parent.name in {"flickr30k", "coco"}]


def read(path, *flags):
    return parse("train", TrainConfig, ["--config", str(path), *flags])


def name(path):
    return str(path.relative_to(ROOT))


def test_there_are_presets():
    assert len(PAPER) == 21
    assert {path.parent.name for path in FILES} == {"clip", "coco", "flickr30k", "flickr8k", "smoke"}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_preset_is_understood(path):
    config = read(path)
    check_config(config)
    make_loss(config.loss)
    model = dict(config.model)
    if model.get("image") == "features":
        model["features"] = 1  # which the run learns from the files
    assert model_config(model).name == model["name"]
    for key, value in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        assert getattr(config, key) == value


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_preset_says_how_to_run_it(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(f"# bcls train --config configs/{name(path)} --data DIR") for line in lines)
    assert [line for line in lines if "#" not in line and not line.endswith(":")] == []


def test_the_preset_on_vectors_is_the_one_on_photos():
    photos, vectors = (read(ROOT / "flickr8k" / f"tuned-{kind}.yaml") for kind in ("bcls", "vectors"))
    differ = {key for key in asdict(photos) if getattr(photos, key) != getattr(vectors, key)}
    assert differ == {"features", "model"}
    assert photos.model | {"image": "features"} == vectors.model | {"image_view": photos.model["image_view"]}


def test_the_recommended_preset_has_the_settings_of_its_results():
    preset = asdict(read(ROOT / "flickr8k" / "recommended.yaml"))
    lines = (ROOT.parent / "results" / "flickr8k" / "both" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    trained = next(one for one in map(json.loads, lines) if one["name"] == "dense Kendall, wide")["settings"]
    preset["model"] |= {"image": "features"}
    trained["model"] |= {"image_view": preset["model"]["image_view"]}
    step = {"drops", "drop"}  # of another schedule
    assert {key for key in trained if trained[key] != preset[key]} - step == {"features"}


@pytest.mark.parametrize("path", PAPER, ids=name)
def test_the_papers_settings(path):
    config = read(path)
    model, _, loss = path.stem.partition("-")
    assert (config.model["name"], config.loss["name"]) == (model, loss.removesuffix("-cider"))
    assert config.labels == ("cider" if loss.endswith("-cider") else "minilm")
    assert (config.batch, config.epochs, config.lr, config.clip) == (128, 20, 5e-4, 2.0)
    assert (config.optimizer, config.schedule, config.drops, config.drop) == ("adam", "step", [10], 0.1)
    made = make_loss(config.loss)
    assert made.reduction == "sum"
    if isinstance(made, BCLSLoss):
        assert (made.continuous.alpha, made.continuous.beta, made.binary.gamma) == (0.2, 0.1, 50)
        assert (made.binary.margin, made.weight, made.binary.lse) == (0.2, 1.0, "sum")


def test_a_flag_replaces_the_loss_or_the_model_of_a_preset():
    config = read(ROOT / "flickr30k" / "sgr-triplet-hn.yaml", "--loss.name", "ladder", "--model.name", "saf")
    assert make_loss(config.loss).reduction == "sum"
    assert model_config(config.model).name == "saf"
