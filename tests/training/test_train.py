"""The loop: learning, guards, moving average, early stop, refused settings, and the files of a run."""

import json

import pytest
import torch
from safetensors.torch import load_file

from bcls._core.locks import lock_folder
from bcls.training.metrics_log import StepMonitor
from bcls.training.setup import set_up, validate
from bcls.training.train import seed_step, train
from tests.training.factories import TinyModel, WordModel, captions_of, make_data, settings


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
        ({"best": "tau"}, "a recall where there are no labels of a text encoder"),
        ({"warm_negatives": 2}, "`warm_negatives`"),
        ({"patience": 1, "val_split": None}, "`patience`"),
        ({"loss": {"name": "bcls"}}, "`labels`"),
        ({"loss": {"name": "triplet", "marign": 1}}, "did you mean 'margin'"),
        ({"loss": {"margin": 1}}, "`loss`"),
        ({"train_split": "trian"}, "did you mean 'train'"),
        ({"features": "mad"}, "did you mean 'made'"),
        ({"rates": {"al": 2.0}}, "`rates.al`"),
        ({"device": "gpu"}, "`device`"),
        ({"data": ""}, "--data"),
        ({"out": ""}, "--out"),
        ({"resume": True}, "leave --resume out"),
        ({"data": "/nowhere/at/all"}, "no such dataset"),
    ],
)
def test_wrong_settings_are_reported(data, tmp_path, changes, message):
    with pytest.raises((ValueError, OSError), match=message):
        train(settings(**{"data": data, "out": tmp_path / "run", **changes}), model=TinyModel())
    # The folder can be used again with correct settings.
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "vspp"}, "did you mean 'vsepp'"),
        ({"name": "vsepp", "widht": 3}, "did you mean 'width'"),
        (
            {"name": "vsepp", "features": 99},
            r"`features`: .*, got \(18, 6\); .* features of width 99",
        ),
    ],
)
def test_a_model_that_does_not_match_the_data_is_reported(data, tmp_path, model, message):
    with pytest.raises(ValueError, match=message):
        train(settings(data, tmp_path / "run", model=model))


@pytest.fixture
def ended(data, tmp_path):
    train(settings(data, tmp_path / "run", epochs=1), model=TinyModel())
    return tmp_path / "run"


def test_a_run_is_not_overwritten(data, ended):
    with pytest.raises(ValueError, match="--resume"):
        train(settings(data, ended, epochs=1), model=TinyModel())


def test_changed_settings_are_reported(data, ended):
    changed = settings(data, ended, epochs=1, lr=0.5, loss={"name": "triplet-sn", "gamma": 9.0}, resume=True)
    with pytest.raises(ValueError, match=r"loss.gamma: None before, 9.0 now; lr: 0.01 before, 0.5 now"):
        train(changed, model=TinyModel())


def test_another_model_is_refused(data, ended):
    with pytest.raises(ValueError, match="shape"):
        train(settings(data, ended, epochs=1, resume=True), model=TinyModel(width=5))


def test_another_dataset_is_refused(ended, tmp_path):
    other = make_data(tmp_path / "other", rows=captions_of(images=28))
    with pytest.raises(ValueError, match=r"the number of images of the run, 18, got 21"):
        train(settings(other, ended, epochs=1, resume=True), model=TinyModel())


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "training.json"])
@pytest.mark.parametrize("keep", [0, 0.5])
def test_an_incomplete_file_is_reported(data, ended, name, keep):
    path = ended / "checkpoints" / "last" / name
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(ValueError, match=name):
        train(settings(data, ended, epochs=1, resume=True), model=TinyModel())


def test_a_run_in_use_is_refused(data, tmp_path):
    with lock_folder(tmp_path / "run"), pytest.raises(ValueError, match="in use by process"):
        train(settings(data, tmp_path / "run"), model=TinyModel())


@pytest.mark.usefixtures("charts")
def test_files_of_a_run(data, tmp_path):
    result = train(settings(data, tmp_path / "run", model={"name": "vsepp", "width": 8, "word_width": 4}))
    folder = tmp_path / "run"
    names = {path.name for path in folder.iterdir()}
    assert {"config.yaml", "environment.json", "metrics.jsonl", "checkpoints", "report.html"} <= names
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines if line["epoch"] == 2][-1] == "validation"
    assert {"loss", "triplet", "lr", "gradient", "spread"} <= lines[0].keys()
    assert result.best["rsum"] == max(line["rsum"] for line in lines if line["kind"] == "validation")
    page = (folder / "report.html").read_text()
    assert "data:image/svg+xml" in page
    assert "http" not in page.replace("http-equiv", "")
    assert json.loads((folder / "environment.json").read_text())["parts"][0]["processes"] == 1

    from bcls.models import load

    weights = load_file(folder / "checkpoints" / "best" / "model.safetensors")
    assert load(folder).state_dict().keys() == weights.keys()


def test_a_run_killed_before_its_settings_were_written_can_be_started_again(data, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert train(settings(data, tmp_path / "run", epochs=1), model=TinyModel()).epochs == 1


def test_a_truncated_metrics_file_is_reported(data, tmp_path):
    train(settings(data, tmp_path / "run", epochs=1), model=TinyModel())
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"metrics.jsonl.*put the whole file back"):
        train(settings(data, tmp_path / "run", epochs=1, resume=True), model=TinyModel())


def lines(folder, kind):
    return [
        line for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if line["kind"] == kind
    ]


def weights(folder, name="last"):
    return load_file(folder / "checkpoints" / name / "model.safetensors")


def test_the_loss_falls_and_recall_rises(data, tmp_path):
    result = train(settings(data, tmp_path / "run", epochs=30, drops=[25], train_split="val"), model=TinyModel())
    steps = lines(tmp_path / "run", "step")
    assert steps[-1]["loss"] < 0.5 * steps[0]["loss"]
    assert result.history[-1]["rsum"] > result.history[0]["rsum"] + 50


def test_cross_attention_trains_as_well(tmp_path):
    regions = make_data(tmp_path / "data", regions=4)
    result = train(settings(regions, tmp_path / "run"), model=WordModel())
    assert result.epochs == 2


class Poisoned(TinyModel):
    """Its scores are NaN at one batch, or its gradient is."""

    def __init__(self, at, what):
        super().__init__()
        self.at, self.what, self.seen = at, what, 0

    def scores(self, images, texts):
        self.seen += 1
        scores = super().scores(images, texts)
        if self.seen == self.at and self.what == "scores":
            return scores * torch.tensor(float("nan"))
        if self.seen == self.at:
            scores.register_hook(lambda gradient: gradient * float("inf"))
        return scores


@pytest.mark.parametrize(("what", "named"), [("scores", "similarity"), ("gradient", "gradient")])
def test_nan_stops_with_the_batch_and_keeps_the_last_checkpoint(data, tmp_path, what, named):
    with pytest.raises(ValueError, match=rf"`{named}`: expected a finite number at step 6.*i\d+#\d") as error:
        train(settings(data, tmp_path / "run"), model=Poisoned(6, what))
    assert "--lr" in str(error.value)
    state = json.loads((tmp_path / "run" / "checkpoints" / "last" / "training.json").read_text())
    assert state["progress"]["done"] == 4
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())
    train(settings(data, tmp_path / "run", resume=True), model=TinyModel())


def test_out_of_memory_names_the_flag(data, tmp_path):
    class Large(TinyModel):
        def scores(self, images, texts):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(ValueError, match="lower --batch"):
        train(settings(data, tmp_path / "run"), model=Large())


def test_collapse_is_reported_once_with_a_remedy(data, tmp_path, capsys):
    class Collapsed(TinyModel):
        def scores(self, images, texts):
            return super().scores(images, texts) * 1e-6

    train(settings(data, tmp_path / "run", epochs=10, loss={"name": "triplet-hn"}), model=Collapsed())
    printed = capsys.readouterr().err
    assert printed.count("the model has collapsed") == 1
    assert "--warm-negatives 2 or more" in printed
    assert lines(tmp_path / "run", "step")[-1]["loss"] == pytest.approx(0.4, abs=1e-3)


def test_no_collapse_warning_for_a_run_that_learns(data, tmp_path, capsys):
    train(settings(data, tmp_path / "run", epochs=10, loss={"name": "triplet-hn"}), model=TinyModel())
    assert "collapsed" not in capsys.readouterr().err


def test_the_first_epochs_have_all_negatives(data, tmp_path):
    changes = {"loss": {"name": "infonce", "learn_temperature": True}, "warm_negatives": 1}
    train(settings(data, tmp_path / "run", **changes), model=TinyModel())
    terms = {line["epoch"]: {"triplet", "infonce"} & line.keys() for line in lines(tmp_path / "run", "step")}
    assert terms == {1: {"triplet"}, 2: {"infonce"}}


@pytest.mark.parametrize(("warm", "counted"), [(0, 3), (1, 2), (2, 1)])
def test_the_optimizer_starts_again_after_the_epochs_of_all_negatives(data, tmp_path, warm, counted):
    train(settings(data, tmp_path / "run", epochs=3, warm_negatives=warm), model=TinyModel())
    steps = lines(tmp_path / "run", "step")[-1]["step"]
    state = load_file(tmp_path / "run" / "checkpoints" / "last" / "training.safetensors")
    assert {int(value) * 3 for name, value in state.items() if name.endswith("/step")} == {steps * counted}


def test_the_average_is_evaluated_and_saved(data, tmp_path):
    torch.manual_seed(0)
    start = TinyModel()
    plain, averaged = TinyModel(), TinyModel()
    for model in (plain, averaged):
        model.load_state_dict(start.state_dict())
    train(settings(data, tmp_path / "plain", epochs=1), model=plain)
    train(settings(data, tmp_path / "ema", epochs=1, ema=0.5), model=averaged)
    for name, value in plain.state_dict().items():
        assert torch.equal(averaged.state_dict()[name], value)  # the weights themselves learn alike
        kept = weights(tmp_path / "ema")[name]
        assert not torch.equal(kept, value)
        assert torch.equal(kept, weights(tmp_path / "ema", "best")[name])


def test_an_early_stop(data, tmp_path):
    result = train(settings(data, tmp_path / "run", epochs=50, lr=1e-9, patience=2), model=TinyModel())
    assert result.epochs == 3
    assert result.best_epoch == 1
    assert len(lines(tmp_path / "run", "validation")) == 3


def test_a_run_that_stopped_early_is_not_extended(data, tmp_path, capsys):
    stopping = {"lr": 1e-9, "patience": 2}
    train(settings(data, tmp_path / "run", epochs=50, **stopping), model=TinyModel())
    again = train(settings(data, tmp_path / "run", epochs=60, resume=True, **stopping), model=TinyModel())
    assert again.epochs == 3
    shown = capsys.readouterr().err
    assert "note: --patience 2 stopped the run after epoch 3, and it stays stopped" in shown
    assert "continues at" not in shown


@pytest.mark.usefixtures("charts")
def test_without_a_validation_split(data, tmp_path):
    result = train(settings(data, tmp_path / "run", val_split=None), model=TinyModel())
    assert (result.best, result.best_epoch, result.history) == ({}, 0, [])
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()
    assert (tmp_path / "run" / "report.html").exists()


def test_accumulation_takes_the_mean_of_its_batches(data, tmp_path):
    train(settings(data, tmp_path / "run", accumulate=3, epochs=1, log_every=1), model=TinyModel())
    assert [line["step"] for line in lines(tmp_path / "run", "step")] == [1, 2, 3]


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_runs_of_different_precision_in_one_process(data, tmp_path, precision):
    model = TinyModel()
    result = train(settings(data, tmp_path / "run", precision=precision), model=model)
    assert result.epochs == 2
    assert all(value.dtype == torch.float32 for value in weights(tmp_path / "run").values())
    assert model.forward.__func__ is TinyModel.forward  # nothing of the run sticks to the model


def test_groups_have_their_own_rates(data, tmp_path):
    class Grouped(TinyModel):
        def parameter_groups(self):
            return {"image": list(self.image.parameters()), "words": list(self.words.parameters())}

    model = Grouped()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train(settings(data, tmp_path / "run", epochs=1, rates={"words": 1e-9}), model=model)
    torch.testing.assert_close(model.words.weight, before["words.weight"], atol=1e-6, rtol=0)
    assert (model.image.weight - before["image.weight"]).abs().max() > 1e-3


def test_positions_have_different_seeds():
    drawn = set()
    for position in [(1, 0, 0, 0), (1, 0, 1, 0), (1, 1, 0, 0), (1, 0, 0, 1), (2, 0, 0, 0), (0, 1, 0, 0)]:
        seed_step(*position)
        drawn.add(torch.rand(1).item())
    assert len(drawn) == 6


def test_values_are_read_late_and_none_is_lost():
    monitor = StepMonitor(["c"], check_gradient=True)
    for step in range(1, 4):
        monitor.add(step, {"a": torch.tensor(float(step)), "spread": torch.tensor(1.0)}, [0])
    assert monitor.pending == []
    monitor.read()
    assert monitor.take_means() == {"loss": 2.0, "a": 2.0, "spread": 1.0}
    assert monitor.pending == []


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_each_kept_model_has_the_metrics_of_its_epoch(data, tmp_path, ema):
    config = settings(data, tmp_path / "run", epochs=3, keep_epochs=True, ema=ema)
    result = train(config, model=TinyModel())
    kept = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in kept.iterdir()) == ["best", "epoch-1", "epoch-2", "epoch-3", "last"]
    model = TinyModel()
    run = set_up(settings(data, tmp_path / "other"), model)
    for epoch, metrics in enumerate(result.history, start=1):
        model.load_trained_state(weights(tmp_path / "run", f"epoch-{epoch}"))
        assert validate(model, run.validation, run.learner.loss) == metrics
    run.close()
    best, chosen, first, second = (
        weights(tmp_path / "run", name) for name in ("best", f"epoch-{result.best_epoch}", "epoch-1", "epoch-2")
    )
    assert all(torch.equal(best[name], value) for name, value in chosen.items())
    assert not torch.equal(first["words.weight"], second["words.weight"])


def test_keep_epochs_may_be_set_when_a_run_is_resumed(data, tmp_path):
    class Stops(TinyModel):
        steps = 0

        def forward(self, images, texts):
            self.steps += 1
            if self.steps == 5:
                raise ValueError("stop here")
            return super().forward(images, texts)

    with pytest.raises(ValueError, match="stop here"):
        train(settings(data, tmp_path / "run", epochs=2, save_every=2), model=Stops())
    kept = tmp_path / "run" / "checkpoints"
    assert [path.name for path in kept.iterdir()] == ["last"]
    train(settings(data, tmp_path / "run", epochs=2, save_every=2, keep_epochs=True, resume=True), model=TinyModel())
    assert sorted(path.name for path in kept.iterdir()) == ["best", "epoch-1", "epoch-2", "last"]
    state = json.loads((kept / "last" / "training.json").read_text())
    assert state["progress"]["finished"]
