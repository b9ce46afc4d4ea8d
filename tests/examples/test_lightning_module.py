import numpy as np
import pytest
import torch

from bcls.losses import BCLSLoss


@pytest.fixture
def module(example):
    pytest.importorskip("pytorch_lightning", reason='needs pip install "bcls[dev]"')
    return example("lightning_module")


def test_a_step_is_the_loss_of_the_library(module, monkeypatch):
    texts, images = ["a dog", "a brown dog", "two trains", "a red boat"], np.array([0, 0, 1, 2])
    generator = torch.Generator().manual_seed(0)
    features, vectors = torch.randn(3, 6, generator=generator), torch.randn(4, 5, generator=generator).numpy()
    torch.manual_seed(0)
    model = module.build_model(
        {"name": "vsepp", "features": 6, "width": 8}, vocabulary=module.Vocabulary.build(texts, threshold=1)
    )
    trained = module.RetrievalModule(model, features, texts, images, vectors)
    logged = {}
    monkeypatch.setattr(trained, "log_dict", lambda terms, **_: logged.update(terms))
    monkeypatch.setattr(trained, "all_gather", lambda value, **_: value)
    places = torch.tensor([3, 0, 1])
    value = trained.training_step(places)
    similarity = model.similarity(features[images[places]], [texts[place] for place in places])
    labels = trained.labels(places.numpy())
    torch.testing.assert_close(value, BCLSLoss()(similarity, labels, image_ids=torch.tensor([2, 0, 0])))
    assert sorted(logged) == ["binary", "continuous"]
    value.backward()
    assert model.fc.weight.grad.abs().sum() > 0
    assert model.reader.embed.weight.grad.abs().sum() > 0


def test_it_learns_what_holds_of_other_scenes(module):
    metrics = module.main(epochs=12)
    assert metrics["after"]["rsum"] > 1.5 * metrics["before"]["rsum"]
    assert metrics["after"]["i2t_tau_a"] > 0.05 + metrics["before"]["i2t_tau_a"]


@pytest.mark.slow
def test_two_processes_validate_as_one(module):
    """75 captions a process in batches of 64 and 11; one more epoch of training in both."""
    one = module.main(epochs=1)
    two = module.main(epochs=1, devices=2, strategy="ddp_spawn")
    assert two["before"] == pytest.approx(one["before"])
    assert two["after"]["rsum"] != two["before"]["rsum"]
