import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcls.experiments.plan import TRIAL, choose, plan_runs, plan_trials, take_share, trials
from bcls.experiments.sweep_file import Configuration, Search, Sweep, read_sweep
from tests.experiments.factories import BASE, write


def sweep_of(tmp_path, **content):
    return read_sweep(write(tmp_path / "a.yaml", **content))


def test_every_configuration_at_every_point_with_every_seed(tmp_path):
    runs = plan_runs(sweep_of(tmp_path, runs={"A": {}, "B": {"lr": 0.1}}, grid={"loss.alpha": [0.1, 0.2]}, seeds=2))
    assert [(run.seed, run.name) for run in runs[:4]] == [
        (1, "A (alpha=0.1)"),
        (1, "A (alpha=0.2)"),
        (1, "B (alpha=0.1)"),
        (1, "B (alpha=0.2)"),
    ]
    assert len(runs) == len({run.key for run in runs}) == 8
    assert runs[3].settings["loss"] == {"name": "bcls", "alpha": 0.2}


def test_the_key_depends_on_what_changes_the_result_only(tmp_path):
    key = plan_runs(sweep_of(tmp_path))[0].key
    same = {
        "named": {"runs": {"other name": {}}},
        "defaults": {"settings": {"clip": 2.0, "precision": "no"}},
    }
    for content in same.values():
        assert plan_runs(sweep_of(tmp_path, **content))[0].key == key
    other = [
        {"settings": {"lr": 0.5}},
        {"settings": {"loss.alpha": 0.3}},
        {"seeds": [2]},
        {"runs": {"A": {"noise": 0.1}}},
    ]
    keys = {plan_runs(sweep_of(tmp_path, **content))[0].key for content in other}
    assert len(keys | {key}) == len(other) + 1


def test_an_ensemble_comes_after_its_members(tmp_path):
    runs = plan_runs(sweep_of(tmp_path, runs={"AB": {"ensemble": ["A", "B"]}, "A": {}, "B": {"lr": 0.1}}, seeds=2))
    assert [run.configuration for run in runs] == ["A", "B", "AB", "A", "B", "AB"]
    assert [member.key for member in runs[5].members] == [runs[3].key, runs[4].key]


def test_a_search_has_the_same_budget_for_each_configuration(tmp_path):
    search = {"budget": 3, "space": {"lr": [0.1, 0.2, 0.3]}, "seeds": 2}
    runs = {"A": {}, "B": {"space": {"loss.alpha": [0.1, 0.2]}}, "C": {"space": {"lr": [0.5]}}}
    sweep = sweep_of(tmp_path, runs=runs, search=search)
    planned = plan_trials(sweep)
    assert all(run.phase == TRIAL for run in planned)
    counts = {row: sum(run.configuration == row for run in planned) for row in runs}
    assert counts == {"A": 6, "B": 6, "C": 2}  # a space of one has no more
    assert planned == plan_trials(sweep)
    assert {tuple(run.point) for run in planned if run.configuration == "B"} == {("lr", "loss.alpha")}


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 20), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_a_random_search_tries_the_same_common_points_with_every_configuration(common, own, budget, seed):
    spaces = ({}, {"loss.alpha": [0.1 * n for n in range(own)]}, {"loss.gamma": [n + 1 for n in range(own)]})
    rows = tuple(Configuration(f"{n}", BASE, space=space) for n, space in enumerate(spaces))
    search = Search(budget, seed=seed, space={"lr": [0.1 + n for n in range(common)]})
    tried = [trials(Sweep("s", rows, search=search), row) for row in rows]
    assert [len(points) for points in tried] == [min(budget, common), *[min(budget, common * own)] * 2]
    assert len({str(point) for points in tried for point in points}) == sum(len(points) for points in tried)
    shared = [[point["lr"] for point in points] for points in tried]
    assert shared[1] == shared[2]
    assert shared[1][:common] == shared[0]
    assert [list(point.values()).index(point["lr"]) for point in tried[1]] == [0] * len(tried[1])
    if budget >= max(common, own):
        assert len({point["loss.alpha"] for point in tried[1]}) >= min(common, own)


def test_trials_may_be_shorter_than_the_final_runs(tmp_path):
    search = {"budget": 2, "epochs": 1, "space": {"lr": [0.1, 0.2]}}
    sweep = sweep_of(tmp_path, search=search, settings={"epochs": 5})
    tried, runs = plan_trials(sweep), plan_runs(sweep, {"a": {"lr": 0.2}})
    assert [run.settings["epochs"] for run in tried] == [1, 1]
    assert [run.settings["epochs"] for run in runs] == [5]
    assert all("epochs" not in run.point for run in tried)


def test_the_grid_method_keeps_the_order():
    space = {"lr": [0.1, 0.2], "batch": [8, 16]}
    sweep = Sweep("s", (Configuration("A", BASE),), search=Search(3, method="grid", space=space))
    assert trials(sweep, sweep.configurations[0]) == [
        {"lr": 0.1, "batch": 8},
        {"lr": 0.1, "batch": 16},
        {"lr": 0.2, "batch": 8},
    ]


def test_the_chosen_settings_are_run(tmp_path):
    sweep = sweep_of(tmp_path, search={"budget": 2, "space": {"lr": [0.1, 0.2]}}, seeds=[1, 2])
    planned = plan_trials(sweep)
    results = {run.key: {"validation": {"rsum": 10 * run.settings["lr"]}} for run in planned}
    assert choose(planned[:1], {}, "rsum") is None
    chosen = choose(planned, results, "rsum")
    assert chosen == {"a": {"lr": 0.2}}
    runs = plan_runs(sweep, chosen)
    assert [run.settings["lr"] for run in runs] == [0.2, 0.2]
    assert runs[0].key in results  # the trial of the first seed need not be trained again
    assert (runs[0].name, runs[0].point) == ("a", {})


def test_diverged_trials_are_worst_and_an_unknown_measure_is_named(tmp_path):
    planned = plan_trials(sweep_of(tmp_path, search={"budget": 2, "space": {"lr": [0.1, 0.2]}}))
    good, bad = planned
    results = {good.key: {"validation": {"rsum": 0.0}}, bad.key: {"failed": "NaN"}}
    assert choose(planned, results, "rsum") == {"a": good.point}
    with pytest.raises(ValueError, match=r"search.measure.*did you mean 'rsum'"):
        choose(planned, results, "rsun")
    with pytest.raises(ValueError, match="all diverged"):
        choose(planned, {run.key: {"failed": "NaN"} for run in planned}, "rsum")
    undefined = {good.key: {"validation": {"rsum": 9.0}}, bad.key: {"validation": {"rsum": 1.0, "tau": 0.1}}}
    assert choose(planned, undefined, "tau") == {"a": bad.point}  # tau of constant scores is undefined


@given(st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_shares_are_whole_and_disjoint(shards, seeds):
    rows = (Configuration("A", BASE), Configuration("B", {**BASE, "lr": 0.1}), Configuration("C", {**BASE, "lr": 0.2}))
    rows += (Configuration("AC", BASE, ensemble=("A", "C")),)
    runs = plan_runs(Sweep("s", rows, seeds=tuple(range(seeds))))
    parts = [take_share(runs, f"{number}/{shards}") for number in range(1, shards + 1)]
    assert sorted(run.key for part in parts for run in part) == sorted(run.key for run in runs)
    for part in parts:
        own = {run.key for run in part}
        assert all(member.key in own for run in part for member in run.members)


def test_shares_with_ensembles_are_even():
    rows = (
        Configuration("A", BASE),
        Configuration("B", {**BASE, "lr": 0.1}),
        Configuration("AB", BASE, ensemble=("A", "B")),
    )
    runs = plan_runs(Sweep("s", rows, seeds=tuple(range(4))))
    assert [len(take_share(runs, f"{number}/4")) for number in range(1, 5)] == [3, 3, 3, 3]
    # Ensembles with a member in common are done in one place.
    rows += (
        Configuration("C", {**BASE, "lr": 0.2}),
        Configuration("BC", BASE, ensemble=("B", "C")),
        Configuration("D", {**BASE, "lr": 0.3}),
    )
    runs = plan_runs(Sweep("s", rows))
    assert [[run.configuration for run in take_share(runs, f"{number}/2")] for number in (1, 2)] == [
        ["A", "B", "C", "AB", "BC"],
        ["D"],
    ]


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_invalid_shards(shard):
    with pytest.raises(ValueError, match="--shard"):
        take_share([], shard)
