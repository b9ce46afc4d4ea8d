"""What the loop does beside learning: guards, averages, warm-up, early stops."""

import json

import pytest
import torch
from safetensors.torch import load_file

from bcls.training.console import Watch
from bcls.training.start import train
from bcls.training.step import seed_step
from tests.training.made import TinyModel, WordModel, make_data, settings


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("loop") / "data")


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


def test_memory_that_runs_out_names_the_flag(data, tmp_path):
    class Large(TinyModel):
        def scores(self, images, texts):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(ValueError, match="lower --batch"):
        train(settings(data, tmp_path / "run"), model=Large())


def test_collapse_is_said_once_with_the_cure(data, tmp_path, capsys):
    class Collapsed(TinyModel):
        def scores(self, images, texts):
            return super().scores(images, texts) * 1e-6

    train(settings(data, tmp_path / "run", epochs=10, loss={"name": "triplet-hn"}), model=Collapsed())
    said = capsys.readouterr().err
    assert said.count("the model has collapsed") == 1
    assert "--warm_negatives 2 or more" in said
    assert lines(tmp_path / "run", "step")[-1]["loss"] == pytest.approx(0.4, abs=1e-3)


def test_a_run_that_learns_is_not_called_collapsed(data, tmp_path, capsys):
    train(settings(data, tmp_path / "run", epochs=10, loss={"name": "triplet-hn"}), model=TinyModel())
    assert "collapsed" not in capsys.readouterr().err


def test_the_first_epochs_have_all_negatives(data, tmp_path):
    changes = {"loss": {"name": "infonce", "learn_temperature": True}, "warm_negatives": 1}
    train(settings(data, tmp_path / "run", **changes), model=TinyModel())
    terms = {line["epoch"]: {"triplet", "infonce"} & line.keys() for line in lines(tmp_path / "run", "step")}
    assert terms == {1: {"triplet"}, 2: {"infonce"}}


def test_the_average_is_judged_and_kept(data, tmp_path):
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


def test_without_a_validation_split(data, tmp_path):
    result = train(settings(data, tmp_path / "run", val_split=None), model=TinyModel())
    assert (result.best, result.best_epoch, result.history) == ({}, 0, [])
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()
    assert (tmp_path / "run" / "report.html").exists()


def test_accumulation_takes_the_mean_of_its_batches(data, tmp_path):
    train(settings(data, tmp_path / "run", accumulate=3, epochs=1, log_every=1), model=TinyModel())
    assert [line["step"] for line in lines(tmp_path / "run", "step")] == [1, 2, 3]


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_precisions_one_after_the_other(data, tmp_path, precision):
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
    watch = Watch(check_norm=True)
    for step in range(1, 4):
        watch.note(step, {"a": torch.tensor(float(step)), "spread": torch.tensor(1.0)}, [0])
    assert watch.pending == []
    watch.read(["c"])
    assert watch.take_means() == {"loss": 2.0, "a": 2.0, "spread": 1.0}
    assert watch.pending == []
