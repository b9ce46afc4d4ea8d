import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bcls.data.dataset import open_dataset
from bcls.experiments import SweepSettings, read_results, run_sweep
from bcls.experiments.plan import plan_runs
from bcls.experiments.results import summarize
from bcls.experiments.sweep import list_runs
from bcls.experiments.sweep_file import read_sweep
from bcls.training.config import TrainConfig
from bcls.training.train import train
from tests.experiments.factories import BASE, data, write

ROOT = Path(__file__).parents[2]
ROWS = {"HN": {"loss": {"name": "triplet-hn"}}, "BCLS": {}, "both": {"ensemble": ["HN", "BCLS"]}}


@pytest.fixture
def place(tmp_path):
    data(tmp_path / "data")
    return tmp_path


def settings(place, **changes):
    plain = {"data": str(place / "data"), "out": str(place / "out"), "device": "cpu"}
    return SweepSettings(**{**plain, **changes})


def stamps(place):
    return {path: path.stat().st_mtime_ns for path in (place / "out" / "runs").glob("*/metrics.jsonl")}


def test_a_sweep_is_trained_and_validated_and_tested_only_when_final(place):
    file = write(place / "a.yaml", runs=ROWS, seeds=2, name="mine")
    outcome = run_sweep(file, settings(place))
    assert (outcome.planned, outcome.finished, outcome.failed, outcome.spent) == (6, 6, [], False)
    about, lines = read_results(place / "out")
    assert about["name"] == "mine"
    assert 0 < about["spread"] < 1
    assert [(line["row"], line["seed"]) for line in lines] == [
        (row, seed) for seed in (1, 2) for row in ("HN", "BCLS", "both")
    ]
    for line in lines:
        assert "test" not in line
        assert {"i2t_r1", "rsum", "tau", "tau_b", "ndcg", "i2t_cs8"} <= line["validation"].keys()
    assert [one["epoch"] for one in lines[0]["history"]] == [1, 2]
    assert lines[0]["settings"]["loss"] == {"name": "triplet-hn"}
    best = max(one["rsum"] for one in lines[1]["history"])
    assert lines[1]["validation"]["rsum"] == pytest.approx(best)
    before = stamps(place)
    again = run_sweep(file, settings(place, final=True))
    assert again.finished == 6
    assert stamps(place) == before  # nothing was trained again
    tested = read_results(place / "out")[1]
    assert all({"rsum", "tau", "cider_tau_b", "cider_ndcg"} <= line["test"].keys() for line in tested)
    assert all("wordllama_tau_b" not in line["test"] for line in tested)  # the encoder that trained
    assert [line["validation"] for line in tested] == [line["validation"] for line in lines]
    assert not list((place / "out").glob("runs/*/checkpoints/last"))


def test_a_run_equals_bcls_train(place):
    file = write(place / "a.yaml")
    run_sweep(file, settings(place))
    (run,) = plan_runs(read_sweep(file))
    train(TrainConfig(**BASE, data=str(place / "data"), out=str(place / "alone"), device="cpu"))
    weights = [
        load_file(folder / "checkpoints/best/model.safetensors")
        for folder in (place / "out" / "runs" / run.key, place / "alone")
    ]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_sweep_out_of_time_resumes_with_the_same_result(place):
    file = write(place / "a.yaml", settings={"epochs": 20, "lr": 1e-3, "val_images": 2})
    first = run_sweep(file, settings(place, minutes=0.005))
    assert (first.spent, first.finished) == (True, 0)
    assert [row["finished"] for row in list_runs(file, settings(place))] == [False]
    assert run_sweep(file, settings(place)).finished == 1
    run_sweep(file, settings(place, out=str(place / "whole")))
    metrics = [read_results(place / name)[1][0] for name in ("whole", "out")]
    assert metrics[0]["validation"] == metrics[1]["validation"]
    assert metrics[0]["history"] == metrics[1]["history"]


@pytest.mark.slow
def test_a_killed_sweep_resumes_with_the_same_result(place):
    file = write(place / "a.yaml", settings={"epochs": 100, "lr": 1e-3, "val_images": 2})
    code = "import sys; from bcls.cli.sweep import main; main(sys.argv[1:])"
    words = [str(file), "--data", str(place / "data"), "--out", str(place / "out"), "--device", "cpu"]
    process = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        journals = list((place / "out").glob("runs/*/metrics.jsonl"))
        if journals and journals[0].read_text(encoding="utf-8").count("validation") > 5:
            break
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not list((place / "out").glob("runs/*/result.json"))
    assert run_sweep(file, settings(place)).finished == 1
    run_sweep(file, settings(place, out=str(place / "whole")))
    metrics = [read_results(place / name)[1][0] for name in ("whole", "out")]
    assert metrics[0]["validation"] == metrics[1]["validation"]
    assert metrics[0]["history"] == metrics[1]["history"]


def test_shards_are_combined_by_copying_folders(place):
    file = write(place / "a.yaml", runs=ROWS, seeds=2, settings={"epochs": 1})
    for number in (1, 2):
        run_sweep(file, settings(place, out=str(place / f"part{number}"), shard=f"{number}/2"))
        shutil.copytree(place / f"part{number}", place / "out", dirs_exist_ok=True)
    before = stamps(place)
    assert run_sweep(file, settings(place)).finished == 6
    assert stamps(place) == before
    assert [line["row"] for line in read_results(place / "out")[1]] == ["HN", "BCLS", "both"] * 2


def test_a_copy_of_the_results_is_continued_and_members_of_a_new_ensemble_are_trained_again(place):
    search = {"budget": 2, "space": {"lr": [1e-3, 1e-2]}}
    file = write(place / "a.yaml", runs=ROWS, search=search, settings={"epochs": 1})
    run_sweep(file, settings(place, only=["HN", "BCLS"]))
    lines = read_results(place / "out")[1]
    shutil.copytree(place / "out", place / "copy", ignore=shutil.ignore_patterns("runs"))
    copied = settings(place, out=str(place / "copy"))
    assert [run["finished"] for run in list_runs(file, copied)] == [True] * 6 + [False]
    assert run_sweep(file, settings(place, out=str(place / "copy"), only=["HN"])).finished == 3
    assert not list((place / "copy").glob("runs/*/checkpoints"))  # nothing was trained
    assert read_results(place / "copy")[1] == lines
    assert run_sweep(file, copied).finished == 7
    runs = [line for line in read_results(place / "copy")[1] if line["phase"] == "run"]
    assert [line["row"] for line in runs] == ["HN", "BCLS", "both"]
    assert {path.parent.name for path in (place / "copy").glob("runs/*/checkpoints")} == {
        line["key"] for line in runs if not line["ensemble"]
    }


def test_a_copy_of_the_results_writes_nothing_outside_of_its_folder(place):
    file = write(place / "a.yaml", settings={"epochs": 1})
    run_sweep(file, settings(place))
    shutil.rmtree(place / "out" / "runs")
    results = place / "out" / "results.jsonl"
    (line,) = results.read_text().splitlines()
    results.write_text(json.dumps(json.loads(line) | {"key": "../../outside"}) + "\n")
    with pytest.raises(ValueError, match=r"results.jsonl, key`: expected letters and digits, got '../../outside'"):
        run_sweep(file, settings(place))
    assert not (place / "outside").exists()
    assert not (place / "out" / "runs").exists()


@pytest.mark.parametrize("name", ["saf", "sgr", "sgraf", "tuned", "words", "record", "paper-exact"])
def test_stored_results_of_incomplete_sweeps_can_be_continued(name, tmp_path):
    stored = ROOT / "results" / "flickr8k" / name
    shutil.copytree(stored, tmp_path / name)
    file, lines = ROOT / "configs" / "flickr8k" / "sweeps" / f"{name}.yaml", read_results(stored)[1]
    listed = list_runs(file, SweepSettings("unused", str(tmp_path / name), final=True, judgements="unused"))
    assert {path.name for path in (tmp_path / name).iterdir()} == {path.name for path in stored.iterdir()}
    finished = {(run["key"], run["phase"]) for run in listed if run["finished"]}
    complete = {run["phase"] for run in listed} == {"trial", "run"} or "search" not in read_results(stored)[0]
    wanted = {(line["key"], line["phase"]) for line in lines if complete or line["phase"] == "trial"}
    assert finished == wanted


def test_a_search_chooses_on_the_validation_split_and_tests_the_chosen_runs_only(place):
    file = write(
        place / "a.yaml",
        runs={"SN": {"loss": {"name": "triplet-sn"}}, "BCLS": {"space": {"loss.weight": [1.0, 2.0]}}},
        search={"budget": 2, "space": {"lr": [1e-6, 0.02]}},
        seeds=2,
        settings={"epochs": 1},
    )
    half = run_sweep(file, settings(place, shard="1/2", final=True))
    assert (half.searching, half.chosen) == (True, {})
    outcome = run_sweep(file, settings(place, final=True))
    about, lines = read_results(place / "out")
    tried = [line for line in lines if line["phase"] == "trial"]
    runs = [line for line in lines if line["phase"] == "run"]
    assert len(tried) == len(runs) == 4
    assert about["search"]["sizes"] == {"SN": 2, "BCLS": 4}
    assert about["search"]["chosen"] == outcome.chosen
    for row, point in outcome.chosen.items():
        best = max((line for line in tried if line["row"] == row), key=lambda line: line["validation"]["rsum"])
        assert best["point"] == point
    chosen = {line["key"] for line in runs}
    assert all("test" in line for line in runs)
    assert all("test" not in line for line in tried if line["key"] not in chosen)
    assert {path.parent.name for path in (place / "out").glob("runs/*/checkpoints")} == chosen


def write_judgements(place):
    """Ratings of the photos of the test split."""
    photos = open_dataset(place / "data").split("test").image_ids
    pairs = [
        (a, f"{b}#{k}", (i + j + k) % 4 + 1) for i, a in enumerate(photos) for j, b in enumerate(photos) for k in (0, 1)
    ]
    expert = "".join(f"{photo}\t{caption}\t{mark}\t{mark}\t1\n" for photo, caption, mark in pairs)
    crowd = "".join(
        f"{photo}\t{caption}\t{mark // 4}\t{3 * (mark // 4)}\t{3 - 3 * (mark // 4)}\n" for photo, caption, mark in pairs
    )
    (place / "ExpertAnnotations.txt").write_text(expert, encoding="utf-8")
    (place / "CrowdFlowerAnnotations.txt").write_text(crowd, encoding="utf-8")
    (place / "choice.txt").write_text("\n".join(photos[:3]), encoding="utf-8")
    return photos


def test_judgements_bring_agreement_with_people_and_values_by_photo(place):
    photos = write_judgements(place)
    file = write(place / "a.yaml", settings={"epochs": 1}, judged_choice="choice.txt")
    run_sweep(file, settings(place, final=True, judgements=str(place)))
    (line,) = read_results(place / "out")[1]
    wanted = {
        f"{part}_{key}" for part in ("judged", "choice", "report") for key in ("expert_tau_c", "map_at_r_i2t", "r1_t2i")
    }
    assert wanted < line["test"].keys()
    with np.load(place / "out" / "ranks" / f"{line['key']}-test.npz") as saved:
        assert saved["report_expert_tau_c"].shape == (len(photos) - 3,)


def test_judgements_of_a_later_call_are_added_to_tested_runs(place):
    write_judgements(place)
    file = write(place / "a.yaml", settings={"epochs": 1})
    run_sweep(file, settings(place, final=True))
    (before,) = read_results(place / "out")[1]
    later, trained = settings(place, final=True, judgements=str(place)), stamps(place)
    assert [run["finished"] for run in list_runs(file, later)] == [False]
    assert run_sweep(file, later).finished == 1
    (line,) = read_results(place / "out")[1]
    assert "judged_expert_tau_c" in line["test"]
    assert before["test"].items() <= line["test"].items()
    assert [run["finished"] for run in list_runs(file, later)] == [True]
    assert stamps(place) == trained


def test_folds_of_a_later_file_are_added_to_tested_runs(place):
    content = {"settings": {"epochs": 1}, "test_split": "train"}
    run_sweep(write(place / "a.yaml", **content), settings(place, final=True))
    trained = stamps(place)
    assert run_sweep(write(place / "a.yaml", **content, folds=2), settings(place, final=True)).finished == 1
    (line,) = read_results(place / "out")[1]
    assert "fold_rsum" in line["test"]
    assert stamps(place) == trained


def test_runs_without_test_metrics_are_open_in_the_list_of_a_final_sweep(place):
    file = write(place / "a.yaml", settings={"epochs": 1})
    run_sweep(file, settings(place))
    assert [run["finished"] for run in list_runs(file, settings(place))] == [True]
    (place / "out" / ".results.lock").unlink()
    assert [run["finished"] for run in list_runs(file, settings(place, final=True))] == [False]
    assert not (place / "out" / ".results.lock").exists()  # the list of a folder that cannot be written


def test_a_missing_test_split_is_reported_before_training(place):
    with pytest.raises(ValueError, match=r"`test_split`.*did you mean 'test'"):
        run_sweep(write(place / "a.yaml", test_split="tset"), settings(place, final=True))
    assert not (place / "out").exists()


def test_a_missing_file_of_judgements_is_reported_with_the_flag(place):
    with pytest.raises(ValueError, match=r"`--judgements`.*ExpertAnnotations\.txt"):
        run_sweep(write(place / "a.yaml"), settings(place, final=True, judgements=str(place / "data")))


def test_short_trials_choose_for_longer_runs(place):
    search = {"budget": 2, "epochs": 1, "space": {"lr": [1e-6, 0.02]}}
    outcome = run_sweep(write(place / "a.yaml", search=search), settings(place))
    lines = read_results(place / "out")[1]
    assert [(line["phase"], line["epochs"]) for line in lines] == [("trial", 1), ("trial", 1), ("run", 2)]
    assert lines[2]["settings"]["lr"] == outcome.chosen["a"]["lr"]


def test_named_configurations_are_done_first_and_the_others_later(place):
    file = write(place / "a.yaml", runs=ROWS, settings={"epochs": 1})
    assert run_sweep(file, settings(place, only=["HN"])).finished == 1
    assert [line["row"] for line in read_results(place / "out")[1]] == ["HN"]
    before = stamps(place)
    assert run_sweep(file, settings(place, only=["both"])).finished == 3  # with its members
    assert run_sweep(file, settings(place)).finished == 3
    assert stamps(place).items() >= before.items()
    assert run_sweep(file, settings(place, only=["HN"])).finished == 1
    about, lines = read_results(place / "out")
    assert [line["row"] for line in lines] == about["rows"] == ["HN", "BCLS", "both"]  # the others are kept
    assert [run["name"] for run in list_runs(file, settings(place, only=["BCLS"]))] == ["BCLS"]


def test_the_listed_runs_of_a_shard_are_those_it_does(place):
    search = {"budget": 3, "space": {"lr": [1e-3, 1e-2, 2e-2]}}
    file = write(place / "a.yaml", search=search, seeds=[5, 6], settings={"epochs": 1})
    run_sweep(file, settings(place))
    listed = {run["key"] for run in list_runs(file, settings(place, shard="1/2")) if run["phase"] == "run"}
    for path in (place / "out").glob("runs/*/result.json"):
        if json.loads(path.read_text())["validation"].get("ndcg") is not None:  # the runs of the table
            path.unlink()
    run_sweep(file, settings(place, shard="1/2"))
    done = {run["key"] for run in list_runs(file, settings(place)) if run["phase"] == "run" and run["finished"]}
    assert listed == done
    assert len(done) == 1


def test_the_number_of_threads_is_set_and_restored(place, monkeypatch):
    seen, before = [], torch.get_num_threads()
    monkeypatch.setattr("bcls.experiments.sweep.work", lambda *arguments: seen.append(torch.get_num_threads()))
    monkeypatch.setattr("bcls.experiments.sweep.add_spread", lambda *arguments: None)
    run_sweep(write(place / "a.yaml"), settings(place, threads=before + 1))
    assert set(seen) == {before + 1}
    assert torch.get_num_threads() == before


def test_partly_removed_checkpoints_are_not_used(place, monkeypatch):
    file = write(place / "a.yaml", search={"budget": 2, "space": {"lr": [1e-3, 1e-2]}}, settings={"epochs": 1})
    asked = []
    monkeypatch.setattr("bcls.experiments.sweep.shutil.rmtree", lambda path, **more: asked.append(path))  # killed there
    run_sweep(file, settings(place))
    chosen = {line["key"] for line in read_results(place / "out")[1] if line["phase"] == "run"}
    assert {path.parent.name for path in (place / "out").glob("runs/*/checkpoints")} == chosen
    assert asked


def test_processes_share_the_runs(place):
    file = write(place / "a.yaml", runs=ROWS)
    outcome = run_sweep(file, settings(place, processes=2, threads=1))
    assert outcome.finished == 3
    assert [line["row"] for line in read_results(place / "out")[1]] == ["HN", "BCLS", "both"]


@pytest.mark.slow
def test_the_error_of_a_process_is_raised(place):
    file = write(place / "a.yaml", settings={"features": "missing"}, seeds=2)
    with pytest.raises(ValueError, match="'missing'"):
        run_sweep(file, settings(place, processes=2, threads=1))


def test_a_diverged_run_is_recorded_and_the_others_continue(place):
    file = write(place / "a.yaml", runs={"wild": {"lr": 1e37, "clip": None}, "tame": {}})
    outcome = run_sweep(file, settings(place))
    assert (outcome.finished, outcome.failed) == (2, ["wild, seed 1"])
    lines = {line["row"]: line for line in read_results(place / "out")[1]}
    assert "expected a finite number" in lines["wild"]["failed"]
    assert lines["tame"]["validation"]["rsum"] > 0


def test_a_diverged_seed_is_listed_if_the_next_one_finished(place):
    file = write(place / "a.yaml", seeds=2, settings={"epochs": 1})
    run_sweep(file, settings(place))
    first, _ = plan_runs(read_sweep(file))
    (place / "out" / "runs" / first.key / "result.json").write_text('{"failed": "NaN", "dataset": "made"}')
    assert run_sweep(file, settings(place)).failed == ["a, seed 1"]


def test_an_ensemble_with_a_diverged_member_is_recorded_as_failed_and_the_others_are_done(place):
    rows = {**ROWS, "last": {"ensemble": ["BCLS", "tame"]}, "tame": {"loss": {"name": "triplet-sn"}}}
    file = write(place / "a.yaml", runs=rows, settings={"epochs": 1})
    first = next(run for run in plan_runs(read_sweep(file)) if run.name == "HN")
    (place / "out" / "runs" / first.key).mkdir(parents=True)
    (place / "out" / "runs" / first.key / "result.json").write_text('{"failed": "NaN", "dataset": "made"}')
    outcome = run_sweep(file, settings(place))
    assert (outcome.finished, outcome.failed) == (5, ["HN, seed 1", "both, seed 1"])
    lines = {line["row"]: line for line in read_results(place / "out")[1]}
    assert lines["both"]["failed"] == "a member failed: HN, seed 1"
    assert lines["last"]["validation"]["rsum"] > 0
    assert {row.name for row in summarize(place / "out").rows} == set(rows)
    (place / "out" / "runs" / first.key / "result.json").unlink()  # to train it again
    assert [run["name"] for run in list_runs(file, settings(place)) if not run["finished"]] == ["HN", "both"]
    outcome = run_sweep(file, settings(place))
    assert (outcome.finished, outcome.failed) == (5, [])


def test_damaged_metadata_can_be_removed(place):
    file = write(place / "a.yaml", settings={"epochs": 1})
    run_sweep(file, settings(place))
    before, path = stamps(place), place / "out" / "sweep.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"sweep\.json.*remove it and run the sweep again"):
        run_sweep(file, settings(place))
    path.unlink()
    assert run_sweep(file, settings(place)).finished == 1
    assert stamps(place) == before


def test_another_dataset_raises(place):
    file = write(place / "a.yaml")
    run_sweep(file, settings(place))
    data(place / "larger", images=60)
    with pytest.raises(ValueError, match="captions 120"):
        run_sweep(file, settings(place, data=str(place / "larger")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"processes": 0}, "--processes"),
        ({"minutes": 0}, "--minutes"),
        ({"device": "tpu"}, "--device"),
        ({"threads": 0}, "--threads"),
        ({"shard": "2/1"}, "--shard"),
        ({"shard": "0/2"}, "--shard"),
        ({"only": ["b"]}, "--only.*'a'"),
    ],
)
def test_wrong_flags_are_named(place, changes, message):
    with pytest.raises(ValueError, match=message):
        run_sweep(write(place / "a.yaml"), settings(place, **changes))
    assert not (place / "out").exists()


def test_a_wrong_loss_argument_raises_before_training(place):
    file = write(place / "a.yaml", runs={"A": {}, "B": {"loss": {"name": "triplet-hn", "marign": 1}}})
    with pytest.raises(ValueError, match="did you mean 'margin'"):
        run_sweep(file, settings(place))
    assert not (place / "out").exists()


def test_noise_changes_the_result_and_needs_labels(place):
    run_sweep(write(place / "a.yaml", runs={"plain": {}, "noisy": {"noise": 0.5}}), settings(place))
    lines = {line["row"]: line for line in read_results(place / "out")[1]}
    assert lines["plain"]["history"][0]["loss"] != lines["noisy"]["history"][0]["loss"]
    assert json.loads((place / "out" / "sweep.json").read_text())["rows"] == ["plain", "noisy"]
    rows = {"noisy": {"noise": 0.5, "labels": "none", "loss": {"name": "triplet-hn"}}}
    with pytest.raises(ValueError, match="`noise`"):
        run_sweep(write(place / "b.yaml", runs=rows), settings(place, out=str(place / "other")))


def test_an_interrupted_run_has_a_checkpoint_and_resumes(place, monkeypatch):
    file = write(place / "a.yaml", runs={"HN": {"loss": {"name": "triplet-hn"}}, "BCLS": {}}, seeds=1)
    asked = []

    def stops(answer, device, *, communicate=True):
        asked.append(1)
        return len(asked) > 3

    with monkeypatch.context() as patch:
        patch.setattr("bcls.training.train.any_process", stops)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(file, settings(place))
    assert len(list((place / "out").glob("runs/*/checkpoints/last/training.json"))) == 1
    assert run_sweep(file, settings(place)).finished == 2
    assert run_sweep(file, settings(place, out=str(place / "whole"))).finished == 2
    stopped, straight = read_results(place / "out")[1], read_results(place / "whole")[1]
    assert [line["validation"] for line in stopped] == [line["validation"] for line in straight]


def test_a_trial_has_the_metrics_of_its_best_epoch_and_a_run_all_metrics(place):
    search = {"budget": 2, "measure": "rsum", "space": {"lr": [1e-3, 1e-2]}}
    run_sweep(write(place / "a.yaml", search=search, seeds=1), settings(place))
    lines = read_results(place / "out")[1]
    trials = [line for line in lines if line["phase"] == "trial"]
    runs = [line for line in lines if line["phase"] == "run"]
    assert len(trials) == 2
    assert len(runs) == 1
    assert "ndcg" in runs[0]["validation"]
    other = [line for line in trials if line["key"] != runs[0]["key"]]
    assert other
    assert "ndcg" not in other[0]["validation"]
    assert other[0]["validation"]["rsum"] == max(one["rsum"] for one in other[0]["history"])
    assert runs[0]["trial"]["rsum"] == max(one["rsum"] for one in runs[0]["history"])
    assert "ndcg" not in runs[0]["trial"]
    # Results that came from another machine have no weights: what is wanted of them is trained again.
    chosen = place / "out" / "runs" / runs[0]["key"]
    trial = {"rsum": 600.0}  # as if that machine had computed something else
    brief = json.loads((chosen / "result.json").read_text()) | {"brief": True, "trial": trial}
    (chosen / "result.json").write_text(json.dumps(brief))
    shutil.rmtree(chosen / "checkpoints")
    run_sweep(place / "a.yaml", settings(place, final=True))
    again = [line for line in read_results(place / "out")[1] if line["phase"] == "run"]
    assert again[0]["validation"] == runs[0]["validation"]
    assert again[0]["trial"] == trial
    assert "rsum" in again[0]["test"]


def test_a_choice_is_reproduced_from_the_metrics_of_the_trials(place):
    search = {"budget": 2, "measure": "rsum", "space": {"lr": [1e-3, 1e-2]}}
    file = write(place / "a.yaml", search=search, seeds=1)
    chosen = run_sweep(file, settings(place)).chosen
    (run,) = [line for line in read_results(place / "out")[1] if line["phase"] == "run"]
    path = place / "out" / "runs" / run["key"] / "result.json"
    result = json.loads(path.read_text())
    result["validation"]["rsum"] = 0.0  # judged with everything, it came out otherwise than its epochs
    path.write_text(json.dumps(result))
    (place / "out" / "sweep.json").unlink()
    assert run_sweep(file, settings(place)).chosen == chosen


def test_a_choice_does_not_change_afterwards(place):
    search = {"budget": 2, "measure": "rsum", "space": {"lr": [1e-3, 1e-2]}}
    file = write(place / "a.yaml", search=search, seeds=1)
    chosen = run_sweep(file, settings(place)).chosen
    (row, point), *_ = chosen.items()
    for path in (place / "out" / "runs").glob("*/result.json"):
        result = json.loads(path.read_text())
        best = read_best(result, place, path) == point["lr"]
        result["validation"]["rsum"] = 0.0 if best else 600.0  # as if a machine had computed them otherwise
        path.write_text(json.dumps(result))
    assert run_sweep(file, settings(place)).chosen == chosen
    assert {run["phase"] for run in list_runs(file, settings(place))} == {"trial", "run"}
    other = write(place / "a.yaml", search=search | {"space": {"lr": [1e-3, 1e-2, 2e-2]}}, seeds=1)
    assert run_sweep(other, settings(place)).chosen[row] != point  # another space is another search


def test_a_choice_is_kept_by_a_call_for_another_configuration(place):
    search = {"budget": 2, "space": {"lr": [1e-3, 1e-2]}}
    runs = {"HN": {"loss": {"name": "triplet-hn"}}, "BCLS": {}}
    file = write(place / "a.yaml", runs=runs, search=search, settings={"epochs": 1})
    assert run_sweep(file, settings(place, only=["BCLS"])).chosen.keys() == {"BCLS"}
    about, lines = read_results(place / "out")
    assert [(line["row"], line["phase"]) for line in lines] == [("BCLS", "trial"), ("BCLS", "trial"), ("BCLS", "run")]
    chosen = run_sweep(file, settings(place)).chosen
    for path in (place / "out" / "runs").glob("*/result.json"):  # as if another machine had computed them otherwise
        result = json.loads(path.read_text())
        key = "trial" if "trial" in result else "validation"
        result[key]["rsum"] = 600.0 - result[key]["rsum"]
        path.write_text(json.dumps(result))
    run_sweep(file, settings(place, only=["HN"]))
    about, lines = read_results(place / "out")
    assert about["search"]["chosen"] == chosen
    assert len(lines) == 6
    assert run_sweep(file, settings(place)).chosen == chosen


def read_best(result, place, path):
    lines = read_results(place / "out")[1]
    return next(line["settings"]["lr"] for line in lines if line["key"] == path.parent.name)


def test_the_metrics_use_the_device_of_the_settings(place, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "bcls.experiments.metrics.on_device", lambda similarity, device: asked.append(device) or similarity
    )
    run_sweep(write(place / "a.yaml", runs={"BCLS": {}}, settings={"epochs": 1}), settings(place, device="cpu"))
    assert set(asked) == {"cpu"}
