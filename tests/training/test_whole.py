"""Training with everything real: labels from a text encoder, pictures through a backbone."""

import json
from dataclasses import replace

import pytest
import torch

from bcls.features.backbones import Backbone, load_backbone
from bcls.training.config import TrainConfig
from bcls.training.setup import set_up
from bcls.training.start import train
from tests.data.factories import make_dataset
from tests.training.made import make_data, settings

pytest.importorskip("wordllama", reason='needs pip install "bcls[text]"')


def test_bcls_on_labels_of_a_text_encoder(tmp_path):
    data = make_data(tmp_path / "data")
    changes = {"labels": "wordllama", "loss": {"name": "bcls"}, "best": "tau", "word_threshold": 1}
    model = {"name": "vsepp", "width": 8, "word_width": 4}
    result = train(settings(data, tmp_path / "run", **changes, model=model))
    assert {"rsum", "tau", "i2t_tau_a", "t2i_tau_a"} <= result.best.keys()
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(first["binary"] + first["continuous"])
    assert first["continuous"] > 0


@pytest.fixture
def pictures(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch", reason='needs pip install "bcls[photos]"')
    rows = [
        {"image_id": f"i{n}", "caption_id": f"i{n}#{k}", "text": f"picture {n} take {k}", "split": split}
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


def test_pictures_through_a_backbone_that_learns(pictures):
    config = replace(pictures, model={**pictures.model, "finetune": True})
    run = set_up(config)
    first, again = (next(run.feed.batches(run.plan(0)[0], 0)).images.values for _ in range(2))
    assert first.shape == (4, 3, 224, 224)
    assert (first == again).all()
    run.pool.shutdown()
    assert train(config).epochs == 1


def test_a_frozen_backbone_sees_each_picture_once(pictures, monkeypatch):
    seen, eyes = [], []
    forward = Backbone.forward

    def watched(self, pixels):
        seen.append(len(pixels))
        eyes.append(self)
        return forward(self, pixels)

    monkeypatch.setattr(Backbone, "forward", watched)
    assert train(replace(pictures, epochs=3, drops=[2])).epochs == 3
    assert sum(seen) == 1 + 4 + 2  # one look at its grid, then the training and the validation pictures
    # The one that was trained with: a saved model would get a new one from the package.
    fresh, used = load_backbone("efficientnet-lite0").state_dict(), eyes[0].state_dict()
    assert all(torch.equal(fresh[name], used[name]) for name in fresh)
