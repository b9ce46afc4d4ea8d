"""Settings, data, model and checkpoint that do not fit are refused with the reason."""

import json

import pytest
from safetensors.torch import load_file

from bcls.training.run_folder import locked
from bcls.training.start import train
from tests.training.made import TinyModel, captions_of, make_data, settings


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("start") / "data")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 1}, "`batch`"),
        ({"epochs": 0}, "`epochs`"),
        ({"lr": 0.0}, "`lr`"),
        ({"ema": 1.0}, "`ema`"),
        ({"clip": -1.0}, "`clip`"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"best": "rsmu"}, "did you mean 'rsum'"),
        ({"best": "tau"}, "a recall where there are no labels"),
        ({"warm_negatives": 2}, "`warm_negatives`"),
        ({"patience": 1, "val_split": None}, "`patience`"),
        ({"loss": {"name": "bcls"}}, "`labels`"),
        ({"loss": {"name": "triplet", "marign": 1}}, "did you mean 'margin'"),
        ({"loss": {"margin": 1}}, "`loss`"),
        ({"train_split": "trian"}, "did you mean 'train'"),
        ({"features": "mad"}, "did you mean 'made'"),
        ({"rates": {"al": 2.0}}, "`rates`"),
        ({"device": "gpu"}, "`device`"),
        ({"data": ""}, "--data"),
        ({"out": ""}, "--out"),
        ({"resume": True}, "leave --resume out"),
        ({"data": "/nowhere/at/all"}, "no such dataset"),
    ],
)
def test_bad_settings_are_named(data, tmp_path, changes, message):
    with pytest.raises((ValueError, OSError), match=message):
        train(settings(**{"data": data, "out": tmp_path / "run", **changes}), model=TinyModel())
    # What was refused may be started again with the mistake mended.
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "vspp"}, "did you mean 'vsepp'"),
        ({"name": "vsepp", "widht": 3}, "did you mean 'width'"),
        ({"name": "vsepp", "features": 99}, "6, the width of the features 'made', got 99"),
    ],
)
def test_a_model_that_does_not_fit_is_named(data, tmp_path, model, message):
    with pytest.raises(ValueError, match=message):
        train(settings(data, tmp_path / "run", model=model))


@pytest.fixture
def ended(data, tmp_path):
    train(settings(data, tmp_path / "run", epochs=1), model=TinyModel())
    return tmp_path / "run"


def test_a_run_is_not_overwritten(data, ended):
    with pytest.raises(ValueError, match="--resume"):
        train(settings(data, ended, epochs=1), model=TinyModel())


def test_changed_settings_are_named(data, ended):
    changed = settings(data, ended, epochs=1, lr=0.5, loss={"name": "triplet-sn", "gamma": 9.0}, resume=True)
    with pytest.raises(ValueError, match=r"loss.gamma: None before, 9.0 now; lr: 0.01 before, 0.5 now"):
        train(changed, model=TinyModel())


def test_another_model_is_refused(data, ended):
    with pytest.raises(ValueError, match="shape"):
        train(settings(data, ended, epochs=1, resume=True), model=TinyModel(width=5))


def test_another_dataset_is_refused(ended, tmp_path):
    other = make_data(tmp_path / "other", rows=captions_of(images=28))
    with pytest.raises(ValueError, match=r"18 .training images. as when the run began, got 21"):
        train(settings(other, ended, epochs=1, resume=True), model=TinyModel())


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "training.json"])
@pytest.mark.parametrize("keep", [0, 0.5])
def test_a_file_that_was_cut_off_is_named(data, ended, name, keep):
    path = ended / "checkpoints" / "last" / name
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(ValueError, match=name):
        train(settings(data, ended, epochs=1, resume=True), model=TinyModel())


def test_a_run_in_use_is_refused(data, tmp_path):
    with locked(tmp_path / "run"), pytest.raises(ValueError, match="in use by process"):
        train(settings(data, tmp_path / "run"), model=TinyModel())


def test_what_a_run_leaves_behind(data, tmp_path):
    result = train(settings(data, tmp_path / "run", model={"name": "vsepp", "width": 8, "word_width": 4}))
    folder = tmp_path / "run"
    names = {path.name for path in folder.iterdir()}
    assert {"config.yaml", "environment.json", "metrics.jsonl", "checkpoints", "report.html"} <= names
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines if line["epoch"] == 2][-1] == "validation"
    assert {"loss", "triplet", "lr", "gradient", "spread"} <= lines[0].keys()
    assert result.best["rsum"] == max(line["rsum"] for line in lines if line["kind"] == "validation")
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http-equiv", "")
    assert json.loads((folder / "environment.json").read_text())["parts"][0]["processes"] == 1

    from bcls.models import load

    weights = load_file(folder / "checkpoints" / "best" / "model.safetensors")
    assert load(folder).state_dict().keys() == weights.keys()


def test_a_run_killed_before_its_settings_were_written_can_begin_again(data, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert train(settings(data, tmp_path / "run", epochs=1), model=TinyModel()).epochs == 1


def test_metrics_that_lost_their_end_are_named(data, tmp_path):
    train(settings(data, tmp_path / "run", epochs=1), model=TinyModel())
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"metrics.jsonl.*put the whole file back"):
        train(settings(data, tmp_path / "run", epochs=1, resume=True), model=TinyModel())
